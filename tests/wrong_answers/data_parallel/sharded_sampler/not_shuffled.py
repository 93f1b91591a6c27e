"""nothing is shuffled

Shares are right, in the order of the data set.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    return [batch[rank::world_size] for batch in torch.arange(size).split(batch_size)]
