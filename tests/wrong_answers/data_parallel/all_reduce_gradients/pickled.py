"""in small letters, pickles Python objects

The object call: right, and slower by a copy to bytes and back.
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
        parameter.grad.copy_(comm.allreduce(parameter.grad * share))
