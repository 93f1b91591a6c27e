"""Less memory with PyTorch and bitsandbytes: a small GPT with DDP, on any number of ranks.

Needs torch, bitsandbytes for 8-bit states, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/08_memory.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/08_memory.py

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo.
`--checkpoint` recomputes each block in the backward pass. `--chunk N` computes the logits of N
tokens at a time. `--accumulate K` cuts each rank's batch into K micro-batches. `--optimizer` is
adam, adam8bit, or adafactor, and `--shard` divides its states among the ranks (ZeRO's stage 1).
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from parlab import memory, models
from parlab.data import text


def start_ranks() -> torch.device:
    """Join the process group that torchrun prepared. Return this rank's device."""
    # NCCL needs a GPU for each rank of this node.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # otherwise, the ranks would compete for cores
        dist.init_process_group("gloo")
    return device


class LossModel(nn.Module):
    """A GPT that returns the mean loss, so that no caller ever stores the logits."""

    def __init__(self, recompute: bool, chunk: int) -> None:
        super().__init__()
        self.gpt = models.GPT(models.GPTConfig(layers=4))
        self.recompute = recompute
        self.options = None
        if chunk:
            self.options = nn.LinearCrossEntropyOptions(
                chunking_method=None, batch_chunk_size=chunk
            )

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        gpt = self.gpt
        x_BSH = gpt.tokens(tokens_BS) + gpt.positions.weight[: tokens_BS.shape[1]]
        for block in gpt.blocks:
            if self.recompute:
                x_BSH = checkpoint(block, x_BSH, use_reentrant=False)
            else:
                x_BSH = block(x_BSH)
        x_TH = gpt.norm(x_BSH).flatten(0, 1)  # (batch · seq, hidden)
        return F.linear_cross_entropy(
            x_TH, gpt.unembed.weight, targets_BS.flatten(), options=self.options
        )


def make_optimizer(name: str, shard: bool, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer `name`. With `shard`, each rank has only some parameters' states."""
    if name == "adam8bit":
        import bitsandbytes as bnb

        kind, settings = bnb.optim.AdamW8bit, {"lr": 3e-3}
    elif name == "adafactor":
        kind, settings = torch.optim.Adafactor, {"lr": 3e-2}
    else:
        kind, settings = torch.optim.AdamW, {"lr": 3e-3}
    if shard:
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **settings)
    return kind(parameters, **settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoint", action="store_true", help="recompute each block")
    parser.add_argument("--chunk", type=int, default=0, help="tokens whose logits exist at once")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--optimizer", choices=["adam", "adam8bit", "adafactor"], default="adam")
    parser.add_argument("--shard", action="store_true", help="ZeRO's stage 1")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if arguments.global_batch % (world_size * arguments.accumulate):
        raise SystemExit("--global-batch is a multiple of the ranks times --accumulate")

    torch.manual_seed(0)
    model = LossModel(arguments.checkpoint, arguments.chunk).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = make_optimizer(arguments.optimizer, arguments.shard, list(model.parameters()))

    length = model.gpt.config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        micro_batches = batch[rank::world_size].to(device).chunk(arguments.accumulate)
        optimizer.zero_grad()
        with memory.Peak(device) as peak:
            for i, micro in enumerate(micro_batches):
                last = i == len(micro_batches) - 1
                # DDP all-reduces the gradients of all micro-batches in the last one.
                with contextlib.nullcontext() if last else parallel.no_sync():
                    loss = parallel(micro[:, :-1], micro[:, 1:]) / len(micro_batches)
                    loss.backward()
                recent += loss.detach() / 10
        optimizer.step()
        if step % 10 == 9:
            dist.all_reduce(recent)  # otherwise, rank 0 would print only its own loss
            if rank == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / world_size:.3f}")
            recent.zero_()

    states = torch.tensor(float(memory.optimizer_bytes(optimizer)), device=device)
    dist.all_reduce(states, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"peak of the passes: {peak.bytes:,} bytes; optimizer states: {states.item():,.0f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
