"""is not rank 0's: the models have drifted apart

Each rank steps along its own gradient.
"""

import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn

from tests.wrong_answers.data_parallel.right import broadcast_state, sharded_sampler


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch_size: int,
    epochs: int,
    comm: MPI.Intracomm,
) -> list[float]:
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            total = comm.allreduce(len(indices))
            share = len(indices) / total
            optimizer.zero_grad()
            weighted_loss = 0.0
            if len(indices):
                loss = F.cross_entropy(model(inputs[indices]), targets[indices])
                loss.backward()
                weighted_loss = share * loss.item()
            optimizer.step()
            losses.append(comm.allreduce(weighted_loss))
    return losses
