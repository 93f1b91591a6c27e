"""Tensor parallelism with PyTorch's parallelize_module: a small GPT on any number of ranks.

Needs torch, and the course for its model and data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/04_tensor_parallel.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/04_tensor_parallel.py \\
        --tensor-parallel 4

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo.
`--tensor-parallel N` shares each layer among N neighboring ranks (default: all), which should be on
the same node. If there are several such groups, each one trains on its part of the batch.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from parlab import models
from parlab.data import text

PLAN = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(),
}


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


def by_rank(tensor: torch.Tensor, sections: list[int], ranks: int) -> torch.Tensor:
    """Return the rows of a fused Q, K, V in rank order, because ColwiseParallel splits it once."""
    parts = [section.chunk(ranks) for section in tensor.split(sections)]
    return torch.cat([part[r] for r in range(ranks) for part in parts])


def share(block: models.Block, mesh: DeviceMesh) -> None:
    """Reduce a block to this rank's heads and hidden numbers."""
    attention, ranks = block.attention, mesh.size()
    for parameter in attention.qkv.parameters():
        parameter.data = by_rank(parameter.data, attention.sections, ranks)
    parallelize_module(block, mesh, PLAN)
    attention.heads //= ranks
    attention.key_value_heads //= ranks


def average(model: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients over the replicas, among the ranks that hold the same part."""
    for parameter in model.parameters():
        gradient = parameter.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        dist.all_reduce(local, group=mesh.get_group())
        local /= mesh.size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tensor-parallel", type=int, help="ranks that share a layer")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ranks = arguments.tensor_parallel or world_size
    replicas, left = divmod(world_size, ranks)
    if left or arguments.global_batch % replicas:
        raise SystemExit(
            f"--tensor-parallel must divide {world_size}, the number of ranks. The result, the "
            "number of replicas, must divide the batch"
        )
    config = models.GPTConfig(heads=8)
    if config.heads % ranks:
        raise SystemExit(f"--tensor-parallel must divide {config.heads}, the number of heads")
    # Neighbors share layers, because torchrun numbers the ranks of a node consecutively.
    mesh = init_device_mesh(device.type, (replicas, ranks), mesh_dim_names=("data", "tensor"))
    replica = mesh["data"].get_local_rank()

    torch.manual_seed(0)  # every rank creates the same model, and keeps its share
    model = models.GPT(config).to(device)
    for block in model.blocks:
        share(block, mesh["tensor"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)  # of shares

    length = config.sequence_length + 1
    windows = torch.from_numpy(text("train", arguments.steps * arguments.global_batch * length))
    batches = windows.long().view(arguments.steps, arguments.global_batch, length)
    recent = torch.zeros((), device=device)  # the mean loss of the last ten steps
    for step, batch in enumerate(batches):
        own = batch[replica::replicas].to(device)  # all ranks of a layer have the same samples
        optimizer.zero_grad()
        scores = model(own[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), own[:, 1:].flatten())
        loss.backward()
        recent += loss.detach() / 10
        average(model, mesh["data"])
        optimizer.step()
        if step % 10 == 9:
            dist.all_reduce(recent)
            if rank == 0:
                print(f"steps {step - 8} to {step + 1}: loss {recent.item() / world_size:.4f}")
            recent.zero_()

    held = sum(
        (p.to_local() if hasattr(p, "to_local") else p).numel() for p in model.blocks.parameters()
    )
    whole = models.parameter_count(models.GPT(config).blocks)
    if rank == 0:
        print(f"rank 0 holds {held:,} of the blocks' {whole:,} parameters: 1/{whole / held:.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
