"""changed on rank 0, which is the one to copy from

The root is the last rank.
"""

import itertools

from mpi4py import MPI
from torch import nn


def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        comm.Bcast(tensor.detach(), root=comm.size - 1)
