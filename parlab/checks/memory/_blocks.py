"""Computes the right codes of 8-bit states in float64, and compares other codes with them."""

import torch
from torch import Tensor

from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, observed

# Rounding to float32 may move a number past the middle of two levels. The tolerance is relative to
# the number, and to the absmax, because m may be a small difference of large numbers.
CLOSE, OF_ABSMAX = 1e-5, 1e-7


def blocks_of(values: Tensor, block_size: int) -> Tensor:
    """Return the values as (blocks, block_size), with zeros at the end."""
    padded = values.new_zeros(-(-len(values) // block_size) * block_size)
    padded[: len(values)] = values
    return padded.view(-1, block_size)


def scaled(values: Tensor, block_size: int) -> Tensor:
    """Return each number divided by the absmax of its block, flat, in float64. Zeros stay zeros."""
    blocks = blocks_of(values.double(), block_size)
    absmax = blocks.abs().amax(1)
    return (blocks / absmax.where(absmax > 0, 1)[:, None]).flatten()[: len(values)]


def nearest(numbers: Tensor, levels: Tensor) -> Tensor:
    """Return the position of the level nearest to each number, by trying all of them."""
    wide = levels.double()
    parts = numbers.double().split(1024)  # all distances at once would take much memory
    return torch.cat([(part[:, None] - wide).abs().argmin(1) for part in parts])


def quantized(values: Tensor, levels: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return codes (uint8) and absmax (float32)."""
    codes = nearest(scaled(values, block_size), levels).to(torch.uint8)
    return codes, blocks_of(values, block_size).abs().amax(1).float()


def dequantized(codes: Tensor, absmax: Tensor, levels: Tensor, block_size: int) -> Tensor:
    """Return the numbers in float64."""
    each = absmax.double().repeat_interleave(block_size)[: len(codes)]
    return levels.double()[codes.long()] * each


def codes_are_nearest(
    codes: Tensor, values: Tensor, levels: Tensor, block_size: int, name: str = "the codes"
) -> Finding | None:
    """Report the first code whose level is not the nearest one, apart from rounding."""
    numbers, wide = scaled(values, block_size), levels.double()
    right = nearest(numbers, levels)
    distance = (wide[codes.long()] - numbers).abs() - (wide[right] - numbers).abs()
    wrong = (~(distance <= CLOSE * numbers.abs() + OF_ABSMAX)).nonzero().flatten()
    if not len(wrong):
        return None
    at = int(wrong[0])
    return observed(
        f"{name}: at index {at}, number / absmax is {numbers[at]:.6g}. The code {codes[at]} has "
        f"the level {levels[int(codes[at])]:.6g}. The nearest level is {levels[right[at]]:.6g}, "
        f"with code {right[at]} ({len(wrong)} of {len(codes)} differ)"
    )


def pair(got: object, values: Tensor, block_size: int, name: str = "the result") -> Finding | None:
    """Require a pair of codes and absmax, of the right shapes and dtypes."""
    if not isinstance(got, tuple | list) or len(got) != 2:
        return observed(f"{name} is not a pair (codes, absmax)")
    blocks = -(-len(values) // block_size)
    form = torch.empty(len(values), dtype=torch.uint8), torch.empty(blocks)
    for tensor, right, part in zip(got, form, ("codes", "absmax"), strict=True):
        like = isinstance(tensor, Tensor) and tensor.shape == right.shape
        if not like or tensor.dtype != right.dtype:  # values are compared elsewhere
            return equal(tensor, right, part)
    return None
