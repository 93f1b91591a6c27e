"""nothing was summed over the ranks

The result of the all-reduce lands in a tensor that nobody keeps.
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
        comm.Allreduce(MPI.IN_PLACE, parameter.grad * share)
