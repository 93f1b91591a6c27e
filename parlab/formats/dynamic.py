"""The 256 levels of 8-bit optimizer states: the dynamic map (arXiv:2110.02861, section 2.2)."""

import functools

import torch
from torch import Tensor

DECADES = 7


def dynamic_map(signed: bool, device: torch.device | str = "cpu") -> Tensor:
    """Return the 256 levels in ascending order: float32, from about −1 (or 0) to 1.

    From one decade to the next larger one, the number of levels doubles. Signed, the decade from
    0.1 to 1 has 64 levels, and 64 more that are negative; unsigned, it has 128. In a decade, each
    level is the middle of one of the equal parts. 0 and 1 are levels too, and −1 is not.

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
