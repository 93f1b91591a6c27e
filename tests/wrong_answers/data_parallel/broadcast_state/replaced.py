"""was replaced by a new tensor, and an optimizer made before has the old one

New parameters with the right values.
"""

from mpi4py import MPI
from torch import nn


def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            value = comm.bcast(parameter.detach(), root=0)
            setattr(module, name, nn.Parameter(value.clone(), parameter.requires_grad))
    for buffer in model.buffers():
        comm.Bcast(buffer, root=0)
