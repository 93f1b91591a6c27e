"""is a tied weight reduced twice

Weighted beforehand, then summed under each of its two names.
"""

import torch
from mpi4py import MPI
from torch import nn


def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= share
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            comm.Allreduce(MPI.IN_PLACE, parameter.grad)
