"""epochs 0 and 1 have the same shuffle

The epoch is forgotten, as without DistributedSampler.set_epoch.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return [batch[rank::world_size] for batch in shuffle.split(batch_size)]
