"""Measurements with rounded numbers: vanishing updates, means over ranks, blocks with a scale.

This module needs torch, so `parlab.formats` does not import it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def lost_updates(dtype: torch.dtype, ratio: float) -> float:
    """Return the fraction of weights that an update of `ratio` times the weight does not change.

    It tries all weights of `dtype` from 1 up to 2, with positive and negative updates that are
    rounded to `dtype` before they are added.
    """
    epsilon = torch.finfo(dtype).eps
    weights = (1 + epsilon * torch.arange(round(1 / epsilon), dtype=torch.float64)).to(dtype)
    moved = [weights + (sign * ratio * weights.double()).to(dtype) for sign in (1, -1)]
    return torch.cat([after == weights for after in moved]).double().mean().item()


def mean_over_ranks(values: Tensor, dtype: torch.dtype, *, divide_before: float) -> Tensor:
    """Compute the mean of rows, (ranks, numbers) → (numbers,), like a ring in `dtype`.

    Each rank rounds its numbers, divides them by `divide_before`, and adds them to the numbers that
    it received. The sum is divided by the rest, ranks / `divide_before`.
    """
    rows = values.to(dtype) / divide_before
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total / (len(values) / divide_before)


def accurate_sizes(
    values: Tensor,
    dtype: torch.dtype,
    scales: Iterable[float],
    *,
    divide_before: float,
    tolerance: float = 0.01,
) -> tuple[float, float]:
    """Return the smallest and the largest scale that keep the error of a mean over ranks small.

    The values, (ranks, numbers), are multiplied by each of `scales`. The relative error of their
    mean must be less than `tolerance`. Raises ValueError if no scale achieves this.
    """
    accurate = []
    for scale in scales:
        scaled_values = values * scale
        mean = mean_over_ranks(scaled_values, dtype, divide_before=divide_before)
        if relative_error(mean, scaled_values.double().mean(0)) < tolerance:
            accurate.append(scale)
    if not accurate:
        raise ValueError(f"no scale keeps the relative error below {tolerance:g}")
    return min(accurate), max(accurate)


def relative_error(got: Tensor, right: Tensor) -> float:
    """Return the RMS of the difference divided by the RMS of `right`, or infinity for NaN."""
    error = (got.double() - right.double()).square().mean().sqrt()
    value = (error / right.double().square().mean().sqrt()).item()
    return value if value == value else float("inf")


def scaled(values: Tensor, dtype: torch.dtype, block: int) -> Tensor:
    """Round numbers to an 8-bit format with a scale for each `block` of them. Return the numbers.

    The scale is the power of two that brings a block's largest number into the format's largest
    octave or below, as in the MX formats (Rouhani et al. 2023, arXiv:2310.10537). Numbers that are
    still too large become the format's largest number. `len(values)` is a multiple of `block`.
    """
    blocks = values.double().view(-1, block)
    top = torch.finfo(dtype).max
    octave = torch.frexp(blocks.abs().amax(1, keepdim=True)).exponent - 1
    highest = torch.frexp(torch.tensor(top)).exponent - 1
    scale = torch.ldexp(torch.ones_like(blocks[:, :1]), highest - octave)
    small = (blocks * scale).clamp(-top, top).to(torch.float32).to(dtype)
    return (small.double() / scale).view(-1)
