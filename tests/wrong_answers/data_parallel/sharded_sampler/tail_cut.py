"""the uneven tail is cut off

Each share is cut to the length of the shortest.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    batches = [b[: len(b) // world_size * world_size] for b in shuffle.split(batch_size)]
    return [batch[rank::world_size] for batch in batches]
