"""Mixed precision with torch.amp: a small GPT with DDP and autocast, in bf16 or fp16.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/06_mixed_precision.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/06_mixed_precision.py

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo. `--precision` is
fp32, bf16, or fp16, which needs a GradScaler. `--reduce-16` also sends gradients in 16 bits: they
are cast, divided by the number of ranks, and then added.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from parlab import models
from parlab.data import text

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}


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


def check_arguments(arguments: argparse.Namespace) -> None:
    """End the script if the ranks cannot train with these arguments."""
    world_size = dist.get_world_size()
    if arguments.global_batch % world_size:
        raise SystemExit(f"--global-batch must be a multiple of {world_size}, the number of ranks")
    if arguments.reduce_16 and arguments.precision == "fp32":
        raise SystemExit("--reduce-16 needs --precision bf16 or fp16")
    if arguments.reduce_16 and arguments.precision == "bf16" and dist.get_backend() != "nccl":
        raise SystemExit("DDP reduces in bf16 only on NCCL: leave out --reduce-16, or use fp16")


def same_on_all_ranks(value: float, device: torch.device) -> bool:
    """Return True if all ranks have the same number, such as the scale."""
    ends = torch.tensor([value, -value], dtype=torch.float64, device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return ends[0].item() == -ends[1].item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--initial-scale", type=float, default=2.0**16)
    parser.add_argument("--reduce-16", action="store_true", help="send 16-bit gradients")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    check_arguments(arguments)
    dtype = PRECISIONS[arguments.precision]

    torch.manual_seed(0)
    model = models.GPT().to(device)  # in fp32: these are the master weights
    parallel = DistributedDataParallel(model)
    if arguments.reduce_16:
        parallel.register_comm_hook(None, HOOKS[arguments.precision])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # The scaler has no effect unless enabled. bf16 does not need it: it has the exponents of fp32.
    scaler = torch.amp.GradScaler(
        device.type, init_scale=arguments.initial_scale, enabled=dtype == torch.float16
    )

    length = model.config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    skipped = 0
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        own = batch[rank::world_size].to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            scores = parallel(own[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), own[:, 1:].flatten())
        scaler.scale(loss).backward()  # DDP's all-reduce spreads one rank's infinity to all ranks
        recent += loss.detach() / 10
        scaler.unscale_(optimizer)  # before computing the norm
        clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)  # does nothing if a gradient is infinite
        scaler.update()
        skipped += scaler.get_scale() < before
        if step % 10 == 9:
            dist.all_reduce(recent)
            if rank == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / world_size:.4f}")
            recent.zero_()

    agreed = same_on_all_ranks(scaler.get_scale(), device)
    if rank == 0:
        scale = f"{scaler.get_scale():g}{'' if agreed else ', not the same on all ranks'}"
        print(f"{arguments.precision}: {skipped} of {arguments.steps} steps skipped, scale {scale}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
