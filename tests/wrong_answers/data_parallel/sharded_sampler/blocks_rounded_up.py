"""all wait for the one with most

Shares of ⌈batch/N⌉ leave the last ranks with little or nothing.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    width = -(-batch_size // world_size)
    return [b[rank * width : (rank + 1) * width] for b in shuffle.split(batch_size)]
