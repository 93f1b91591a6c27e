"""Which device a rank computes on."""

import os

import torch

LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")


def local_rank() -> int:
    """This rank's number among the ranks of its node, from 0."""
    return int(next((os.environ[v] for v in LOCAL_RANK_VARIABLES if v in os.environ), "0"))


def this_device() -> torch.device:
    """This rank's GPU, shared in turn where ranks outnumber GPUs; else the CPU, on one thread.

    One thread: the ranks of a laptop together have its cores, and more threads than cores
    make each step slower, not faster.
    """
    gpus = torch.cuda.device_count()
    if gpus:
        device = torch.device("cuda", local_rank() % gpus)
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(1)
    return torch.device("cpu")


def one_gpu_each() -> bool:
    """Whether each rank of this node has a GPU of its own, as NCCL needs."""
    ranks_here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    return torch.cuda.device_count() >= ranks_here
