"""Exercise `quantize_blocks`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.unchanged import unchanged
from parlab.checks.memory._blocks import (
    blocks_of,
    codes_are_nearest,
    not_nearest,
    pair,
    quantized,
    scaled,
)
from parlab.formats.dynamic import dynamic_map

LARGE = 40_000
BYTES_PER_NUMBER = 100  # of a large state, while the function runs; all distances take 1,024

MISTAKES = Mistakes(
    one_absmax="all blocks have the same absmax, that of the whole state. Take one for each block",
    signed_maximum=(
        "absmax is the largest number of a block, but its largest absolute value may belong to a "
        "negative one"
    ),
    not_nearest=(
        "the codes are those of the next level {side}, not of the nearest one. Search the middles "
        "between levels"
    ),
    zeros_divided=(
        "in a block of zeros, the code is {got}, expected {right}, whose level is 0. Do not divide "
        "by an absmax of 0"
    ),
    all_distances=(
        "while it runs, the function takes {got:.0f} bytes for each number, expected at most "
        "{most}. Search the sorted levels instead of comparing each number with all of them"
    ),
)


def even() -> Tensor:
    levels = torch.linspace(-127, 127, 255) / 127
    return torch.cat([levels[:1], levels])


def normal(generator: torch.Generator, length: int) -> Tensor:
    return torch.randn(length, generator=generator)


def with_zeros(generator: torch.Generator, length: int) -> Tensor:
    values = normal(generator, length)
    values[64:256] = 0
    return values


def negative(generator: torch.Generator, length: int) -> Tensor:
    return -normal(generator, length).abs() * 10.0 ** normal(generator, length)


def tiny_squares(generator: torch.Generator, length: int) -> Tensor:
    squares = (1e-15 * negative(generator, length)).square()
    squares[64:128] = 0
    return squares


Make = Callable[[torch.Generator, int], Tensor]
CASES: dict[str, tuple[Make, int, int, Tensor]] = {
    "m in blocks of 256": (normal, 1024, 256, dynamic_map(True)),
    "a shorter last block": (normal, 700, 256, dynamic_map(True)),
    "one short block": (normal, 5, 64, dynamic_map(True)),
    "blocks of zeros": (with_zeros, 320, 64, dynamic_map(True)),
    "negative numbers of many sizes": (negative, 999, 32, dynamic_map(True)),
    "v of small gradients": (tiny_squares, 513, 64, dynamic_map(False)),
    "blocks of zeros, even levels": (with_zeros, 1030, 128, even()),
    "a large state": (normal, LARGE, 256, dynamic_map(True)),
}


@check_of(MISTAKES, ranks=1)
def quantize_blocks(check: Check) -> str:
    """Check codes and absmax of blocks of many sizes, and the memory that this takes."""
    measured(torch.ones, 1)  # PyTorch imports a lot for this, and the learner's time is limited
    with check.trial() as trial:
        for _, (make, length, block_size, levels) in trial.cases(CASES):
            generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
            values = make(generator, length)
            given = values.clone(), levels.clone()
            got, peak = trial.run_function(measured, check.function, *given, block_size)
            trial.require(
                lambda: unchanged("`values`", given[0], values),
                lambda: unchanged("`levels`", given[1], levels),
                lambda: absmax_is_right(got, values, block_size),
                lambda: pair(got, values, block_size),
                lambda: equal(got[1], quantized(values, levels, block_size)[1], "absmax"),
                lambda: codes_are_right(got[0], values, levels, block_size),
                lambda: memory_is_small(peak, length) if length >= LARGE else None,
            )
    return "the nearest levels, in whole and shorter blocks, without all distances at once"


def measured(function: Callable, *arguments: Any) -> tuple[Any, int]:
    with memory.Peak() as peak:
        got = function(*arguments)
    return got, peak.bytes


def absmax_is_right(got: Any, values: Tensor, block_size: int) -> Finding | None:
    """Name a wrong absmax; other requirements show the evidence."""
    if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[1], Tensor):
        return None
    absmax, blocks = got[1].flatten(), blocks_of(values, block_size)
    if len(blocks) > 1 and len(absmax) and bool((absmax == values.abs().max()).all()):
        return MISTAKES.one_absmax()
    largest = blocks.amax(1)
    if absmax.shape == largest.shape and torch.equal(absmax.to(largest.dtype), largest):
        return None if torch.equal(largest, blocks.abs().amax(1)) else MISTAKES.signed_maximum()
    return None


def codes_are_right(
    codes: Tensor, values: Tensor, levels: Tensor, block_size: int
) -> Finding | None:
    numbers, right = scaled(values, block_size), quantized(values, levels, block_size)[0]
    wrong = not_nearest(codes, values, levels, block_size)
    if not wrong.any():
        return None
    zeros = (blocks_of(values, block_size) == 0).all(1).repeat_interleave(block_size)
    at_zeros = wrong & zeros[: len(wrong)]
    if at_zeros.any() and not (wrong & ~at_zeros).any():
        at = at_zeros.nonzero()[0]
        return MISTAKES.zeros_divided(got=codes[at].item(), right=right[at].item())
    rounded = numbers.float().double()
    above = torch.searchsorted(levels.double(), rounded).clamp(max=255)
    below = (torch.searchsorted(levels.double(), rounded, right=True) - 1).clamp(min=0)
    for side, other in (("above", above), ("below", below)):
        if (codes.long() == other).double().mean() > 0.98:
            return MISTAKES.not_nearest(side=side)
    return codes_are_nearest(codes, values, levels, block_size)


def memory_is_small(peak: int, length: int) -> Finding | None:
    if peak <= BYTES_PER_NUMBER * length:
        return None
    return MISTAKES.all_distances(got=peak / length, most=BYTES_PER_NUMBER)
