"""Broadcast it whether it requires a gradient or not

Only what is trained is broadcast.
"""

import itertools

from mpi4py import MPI
from torch import nn


def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    trained = (p for p in model.parameters() if p.requires_grad)
    for tensor in itertools.chain(trained, model.buffers()):
        comm.Bcast(tensor.detach(), root=0)
