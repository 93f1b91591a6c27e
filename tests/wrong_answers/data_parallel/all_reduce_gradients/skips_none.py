"""did it skip the all-reduces in which the others wait

A rank without samples has no gradients, and goes on.
"""

from mpi4py import MPI
from torch import nn


def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        parameter.grad *= share
        comm.Allreduce(MPI.IN_PLACE, parameter.grad)
