"""frozen.weight has a .grad now

Zeros for every parameter, trained or not.
"""

import torch
from mpi4py import MPI
from torch import nn


def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= share
        comm.Allreduce(MPI.IN_PLACE, parameter.grad)
