"""ranks 0 and 1 train on the same shard

Every rank takes the first share.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    return [batch[::world_size] for batch in shuffle.split(batch_size)]
