"""a tied weight is reduced twice

Both layers of a shared weight send its gradient.
"""

import torch
from mpi4py import MPI
from torch import nn


def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            scaled = parameter.grad * share
            comm.Allreduce(MPI.IN_PLACE, scaled)
            parameter.grad.copy_(scaled)
