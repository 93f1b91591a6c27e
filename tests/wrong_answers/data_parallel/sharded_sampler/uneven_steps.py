"""would wait for ever in its last all-reduce

The data set is dealt out, then each rank makes batches: some make one more.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    return list(shuffle[rank::world_size].split(batch_size // world_size))
