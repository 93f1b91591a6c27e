"""batch_size is that of the global batch

Each rank takes batch_size samples: the global batch grows with the ranks.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    return [b[rank::world_size] for b in shuffle.split(batch_size * world_size)]
