"""the processes shuffle differently

The global generator is in another state on each rank.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    return [batch[rank::world_size] for batch in torch.randperm(size).split(batch_size)]
