"""weighted with its share, but never summed over the ranks

The all-reduce is missing.
"""

import torch
from mpi4py import MPI
from torch import nn


def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= share
        comm.Allreduce(MPI.IN_PLACE, parameter.grad.clone())
