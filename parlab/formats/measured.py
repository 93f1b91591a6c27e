"""What rounding does, by doing it: updates that vanish, means over ranks, blocks with a scale.

With torch, and imported by itself.
"""

import torch
from torch import Tensor


def lost_updates(dtype: torch.dtype, ratio: float) -> float:
    """The share of weights that an update of `ratio` times the weight leaves as they are.

    Of all weights from 1 up to 2 that `dtype` has, with updates up and down, rounded to `dtype`
    before they are added.
    """
    epsilon = torch.finfo(dtype).eps
    weights = (1 + epsilon * torch.arange(round(1 / epsilon), dtype=torch.float64)).to(dtype)
    moved = [weights + (sign * ratio * weights.double()).to(dtype) for sign in (1, -1)]
    return torch.cat([after == weights for after in moved]).double().mean().item()


def mean_over_ranks(values: Tensor, dtype: torch.dtype, *, divide_first: bool) -> Tensor:
    """The mean of rows, (ranks, numbers) → (numbers,), as a ring computes it in `dtype`.

    Each rank rounds its numbers, and adds them to what it has received. Divided by the ranks
    either by each of them, before it adds, or at the end.
    """
    ranks = len(values)
    rows = values.to(dtype)
    if divide_first:
        rows = rows / ranks
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total if divide_first else total / ranks


def relative_error(got: Tensor, right: Tensor) -> float:
    """Root mean square of the difference over that of what is right; infinite with such numbers."""
    error = (got.double() - right.double()).square().mean().sqrt()
    value = (error / right.double().square().mean().sqrt()).item()
    return value if value == value else float("inf")


def scaled(values: Tensor, dtype: torch.dtype, block: int) -> Tensor:
    """Numbers in an 8-bit format with a scale for each `block` of them, and back again.

    The scale is the power of two that brings a block's largest number to the format's largest
    octave or below, as in the MX formats (Rouhani et al. 2023, arXiv:2310.10537); what is still
    above the format's largest number becomes that. `len(values)` is a multiple of `block`.
    """
    blocks = values.double().view(-1, block)
    top = torch.finfo(dtype).max
    octave = torch.frexp(blocks.abs().amax(1, keepdim=True)).exponent - 1
    highest = torch.frexp(torch.tensor(top)).exponent - 1
    scale = torch.ldexp(torch.ones_like(blocks[:, :1]), highest - octave)
    small = (blocks * scale).clamp(-top, top).to(torch.float32).to(dtype)
    return (small.double() / scale).view(-1)
