"""ZeRO's stage 3 with PyTorch's FSDP2: a small GPT on any number of ranks.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/03_zero.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/03_zero.py

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo. `--keep` keeps full
parameters from the forward pass to the backward pass. `--offload` moves the shards and the
optimizer to the host. `--replicas N` shards inside groups of ranks, with N copies of the model in
total (hybrid sharding).
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_

from parlab import memory, models
from parlab.data import text


def start_ranks() -> torch.device:
    """Join the process group that torchrun prepared. Return this rank's device."""
    # NCCL needs a GPU for each rank of this node.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts
        # With --offload, the norm of the host's shards needs a backend for the CPU.
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # otherwise, the ranks would compete for cores
        dist.init_process_group("gloo")
    return device


def make_mesh(device: torch.device, replicas: int) -> DeviceMesh:
    """Return a mesh with all ranks in a row, or with a row for each replica."""
    world_size = dist.get_world_size()
    if world_size % replicas:
        raise SystemExit(f"--replicas must divide {world_size}, the number of ranks")
    if replicas == 1:
        return init_device_mesh(device.type, (world_size,))
    shape = (replicas, world_size // replicas)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--keep", action="store_true", help="keep full parameters")
    parser.add_argument("--offload", action="store_true", help="shards and optimizer on the host")
    parser.add_argument("--replicas", type=int, default=1, help="copies of the model")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if arguments.global_batch % world_size:
        raise SystemExit(f"--global-batch must be a multiple of {world_size}, the number of ranks")
    mesh = make_mesh(device, arguments.replicas)

    torch.manual_seed(0)  # every rank creates the same model, and keeps its shards
    model = models.GPT().to(device)
    policy = (
        CPUOffloadPolicy(pin_memory=device.type == "cuda") if arguments.offload else OffloadPolicy()
    )
    settings = {"mesh": mesh, "reshard_after_forward": not arguments.keep, "offload_policy": policy}
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)  # the rest: embeddings, the tied output layer, the last norm
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after sharding: for shards

    length = models.GPTConfig().sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        own = batch[rank::world_size].to(device)
        optimizer.zero_grad()
        scores = model(own[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), own[:, 1:].flatten())
        loss.backward()  # meanwhile, FSDP reduce-scatters the mean of the gradients
        recent += loss.detach() / 10
        clip_grad_norm_(model.parameters(), 1.0)  # the norm of the whole gradient
        optimizer.step()
        if step % 10 == 9:
            dist.all_reduce(recent)  # without this, rank 0 would print only its own shard's loss
            if rank == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / world_size:.3f}")
            recent.zero_()

    held = memory.model_states(model, optimizer)  # of DTensors, only this rank's part counts
    whole = 16 * models.parameter_count(model)
    if rank == 0:
        print(f"rank 0 holds {held.total:,} bytes of {whole:,}: 1/{whole / held.total:.1f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
