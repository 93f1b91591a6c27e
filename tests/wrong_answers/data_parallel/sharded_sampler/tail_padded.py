"""the tail is padded, so those samples weigh double

As DistributedSampler does, to make all shares equal.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    batches = list(shuffle.split(batch_size))
    missing = -len(batches[-1]) % world_size
    batches[-1] = torch.cat([batches[-1], shuffle[:missing]])
    return [batch[rank::world_size] for batch in batches]
