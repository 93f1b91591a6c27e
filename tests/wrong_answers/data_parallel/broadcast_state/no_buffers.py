"""parameters are broadcast but buffers (scale, seen) are not

Buffers are not among the parameters.
"""

from mpi4py import MPI
from torch import nn


def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    for parameter in model.parameters():
        comm.Bcast(parameter.detach(), root=0)
