"""Data parallelism with PyTorch's DDP: MNIST on any number of ranks.

Needs torch, and the course for its data.

    torchrun --nproc-per-node 4 --local-addr 127.0.0.1 examples/02_data_parallel.py
    srun torchrun --nnodes 2 --nproc-per-node 4 \\
        --rdzv-backend c10d --rdzv-endpoint $HOST:29400 examples/02_data_parallel.py

It uses GPUs and NCCL if each rank can have a GPU, and otherwise CPUs and Gloo. With
`--trace FOLDER`, each rank writes a trace of three steps for chrome://tracing or Perfetto.
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from parlab.data import mnist


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


def profiler(folder: str | None):
    """Return a profiler that skips one step, warms up in the next, and records three.

    Without a folder, return a context that does nothing.
    """
    if folder is None:
        return nullcontext()
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder) / f"rank{dist.get_rank()}.json"
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(file)),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--save", help="file for the weights")
    parser.add_argument("--trace", help="folder for the profiler's traces")
    arguments = parser.parse_args()

    device = start_ranks()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if arguments.global_batch % world_size:
        raise SystemExit(f"--global-batch must be a multiple of {world_size}, the number of ranks")

    data = TensorDataset(*map(torch.from_numpy, mnist("train", limit=arguments.samples)))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=arguments.global_batch // world_size, sampler=sampler)

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(model.to(device))  # all ranks get rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with profiler(arguments.trace) as profile:
        for epoch in range(arguments.epochs):
            sampler.set_epoch(epoch)  # a new shuffle, the same on all ranks
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()  # meanwhile, DDP all-reduces the mean of the gradients
                optimizer.step()
                if profile is not None:
                    profile.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)  # without this, rank 0 would print only its own shard's loss
            if rank == 0:
                print(f"epoch {epoch}: last batch's loss {mean.item() / world_size:.3f}")

    if rank == 0 and arguments.save:  # one rank saves
        torch.save(model.module.state_dict(), arguments.save)
    dist.barrier()  # all ranks wait until the file is complete
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
