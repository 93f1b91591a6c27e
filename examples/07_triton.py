"""A fused Adam in Triton, on the shards of ZeRO stage 1: a small GPT on several ranks.

Needs torch and triton, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/07_triton.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/07_triton.py

If each rank can have a GPU, it uses GPUs and NCCL, and compiles the kernel. Otherwise, it uses
CPUs, Gloo, and Triton's interpreter.

All parameters are in one flat vector, so that a rank's share of a step is one launch.
`--optimizer torch` uses torch.optim.AdamW instead of the kernel, to compare them.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

# NCCL needs a GPU for each rank of this node.
if not (ON_GPUS := torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])):
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import triton
import triton.language as tl

from parlab import models
from parlab.data import text

BETAS, EPSILON = (0.9, 0.999), 1e-8


@triton.jit
def adam_kernel(
    w_ptr, g_ptr, m_ptr, v_ptr, n,
    rate, shrink, share1, share2, correction1, correction2, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Run AdamW on a vector of n numbers, in place. For each number, read 16 bytes and write 12.

    share1 is 1 − β₁, computed on the host, because float32 is too coarse for the difference.
    """
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    w = tl.load(w_ptr + places, mask=inside)
    g = tl.load(g_ptr + places, mask=inside)
    m = tl.load(m_ptr + places, mask=inside)
    v = tl.load(v_ptr + places, mask=inside)
    m = (1 - share1) * m + share1 * g
    v = (1 - share2) * v + share2 * g * g
    w = w * shrink - rate * (m / correction1) / (tl.sqrt(v / correction2) + epsilon)
    tl.store(w_ptr + places, w, mask=inside)
    tl.store(m_ptr + places, m, mask=inside)
    tl.store(v_ptr + places, v, mask=inside)


class TritonAdamW:
    """AdamW on one flat float32 tensor, with one launch for each step."""

    def __init__(self, weight: torch.Tensor, lr: float, weight_decay: float) -> None:
        self.weight, self.lr, self.shrink = weight, lr, 1 - lr * weight_decay
        self.m, self.v = torch.zeros_like(weight), torch.zeros_like(weight)
        self.steps = 0
        # The interpreter takes some time for each program, even if its block is small.
        self.block = 1024 if weight.is_cuda else 2**16

    def step(self) -> None:
        self.steps += 1
        shares = [1 - beta for beta in BETAS]
        corrections = [1 - beta**self.steps for beta in BETAS]
        n = self.weight.numel()
        adam_kernel[(triton.cdiv(n, self.block),)](
            self.weight, self.weight.grad, self.m, self.v, n,
            self.lr, self.shrink, *shares, *corrections, EPSILON,
            BLOCK=self.block,
        )  # fmt: skip


def start_ranks() -> torch.device:
    """Join the process group that torchrun prepared. Return this rank's device."""
    if ON_GPUS:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts; Triton also launches there
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # otherwise, the ranks would compete for cores
        dist.init_process_group("gloo")
    return device


def flatten(model: torch.nn.Module, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Move all parameters into one vector, and their gradients into another, in equal parts.

    Parameters and their `.grad` become views. Zeros fill the vectors up to `parts` equal parts,
    whose length is a multiple of 16 elements, so that Triton loads 16 bytes at once.
    """
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    weights = torch.zeros(-(-total // (16 * parts)) * 16 * parts, device=parameters[0].device)
    gradients = torch.zeros_like(weights)
    start = 0
    for p in parameters:
        end = start + p.numel()
        weights[start:end] = p.detach().flatten()
        p.data = weights[start:end].view_as(p)
        p.grad = gradients[start:end].view_as(p)
        start = end
    return weights, gradients


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizer", choices=["triton", "torch"], default="triton")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if arguments.global_batch % world_size:
        raise SystemExit(f"--global-batch must be a multiple of {world_size}, the number of ranks")

    torch.manual_seed(0)  # the same weights on all ranks
    model = models.GPT().to(device)
    weights, gradients = flatten(model, world_size)
    shard = weights.chunk(world_size)[rank].clone()
    shard.grad = torch.zeros_like(shard)
    if arguments.optimizer == "triton":
        optimizer = TritonAdamW(shard, lr=3e-3, weight_decay=0.01)
    else:
        optimizer = torch.optim.AdamW([shard], lr=3e-3, weight_decay=0.01, eps=EPSILON)

    length = model.config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        own = batch[rank::world_size].to(device)
        gradients.zero_()  # in place, because every .grad is a view of it
        scores = model(own[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), own[:, 1:].flatten())
        (loss / world_size).backward()
        recent += loss.detach() / 10
        dist.reduce_scatter_single(shard.grad, gradients)
        optimizer.step()
        dist.all_gather_single(weights, shard)
        if step % 10 == 9:
            dist.all_reduce(recent)
            if rank == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / world_size:.4f}")
            recent.zero_()

    if rank == 0:
        how = "in torch" if arguments.optimizer == "torch" else "in one launch"
        if arguments.optimizer == "triton" and device.type == "cpu":
            how += ", interpreted"
        print(
            f"{arguments.optimizer}: each rank steps {shard.numel():,} of {weights.numel():,} {how}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
