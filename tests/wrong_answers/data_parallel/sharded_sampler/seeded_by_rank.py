"""The seed must not depend on the rank

Each rank shuffles for itself.
"""

import torch


def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * epoch + rank)
    shuffle = torch.randperm(size, generator=generator)
    return [batch[rank::world_size] for batch in shuffle.split(batch_size)]
