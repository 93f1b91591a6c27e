"""is no longer in the buffer

The usual first line of a loop, which sets gradients to None.
"""

import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn


def flat_step(
    model: nn.Module,
    flat: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    total: int,
    comm: MPI.Intracomm,
) -> float:
    optimizer.zero_grad()
    weighted_loss = 0.0
    if len(inputs):
        loss = F.cross_entropy(model(inputs), targets) * (len(inputs) / total)
        loss.backward()
        weighted_loss = loss.item()
    comm.Allreduce(MPI.IN_PLACE, flat)
    optimizer.step()
    return weighted_loss
