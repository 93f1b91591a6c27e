"""the last, smaller batch is dropped

As drop_last=True does.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    whole = shuffle[: size // batch_size * batch_size]
    return [batch[rank::world_size] for batch in whole.split(batch_size)]
