"""afterwards it is too late

The sum is weighted, with another share on each rank.
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
        comm.Allreduce(MPI.IN_PLACE, parameter.grad)
        parameter.grad *= share
