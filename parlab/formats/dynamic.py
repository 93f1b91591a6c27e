"""The 256 levels of 8-bit optimizer states: the dynamic map (arXiv:2110.02861, section 2.2)."""

import functools

import torch
from torch import Tensor

DECADES = 7


def dynamic_map(signed: bool, device: torch.device | str = "cpu") -> Tensor:
    """Return the 256 levels in ascending order: float32, from about −1 (or 0) to 1.

    From one decade to the next larger one, the number of levels doubles. If unsigned, the decade
    from 0.1 to 1 has 128 levels. If signed, it has 64, and −1 to −0.1 has 64 more. A decade is
    divided into equal parts, and each level is the middle of one part. 0 and 1 are also levels, but
    −1 is not.

    Args:
        signed: True for a first moment; False for a second moment, which is never negative.
        device: where the levels are needed.
    """
    return _levels(signed).to(device, copy=True)


@functools.cache
def _levels(signed: bool) -> Tensor:
    positive = []
    for decade in range(DECADES):
        parts = 2 ** (decade if signed else decade + 1)
        edges = torch.linspace(0.1, 1.0, parts + 1)
        positive.append((edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - DECADES + 1))
    levels = torch.cat([*positive, torch.tensor([0.0, 1.0])])
    if signed:
        levels = torch.cat([levels, *(-part for part in positive)])
    return levels.sort().values
