"""broadcast where a sum is needed

Every rank gets what rank 0 has.
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
    flat.zero_()
    weighted_loss = 0.0
    if len(inputs):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        weighted_loss = loss.item()
    comm.Bcast(flat, root=0)
    optimizer.step()
    return weighted_loss
