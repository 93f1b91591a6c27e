"""the learning curves cannot be the same

Complete and disjoint, but each rank works through a block of its own.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    steps = -(-size // batch_size)
    return list(shuffle.tensor_split(world_size)[rank].tensor_split(steps))
