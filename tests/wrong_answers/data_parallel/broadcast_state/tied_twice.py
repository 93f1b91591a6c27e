"""a tied weight is sent twice

state_dict() lists a shared weight under both of its names.
"""

from mpi4py import MPI
from torch import nn


def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    for tensor in model.state_dict().values():
        comm.Bcast(tensor, root=0)
