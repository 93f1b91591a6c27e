"""Exercise `quantize_blocks`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.unchanged import unchanged
from parlab.checks.memory._blocks import blocks_of, codes_are_nearest, pair
from parlab.formats.dynamic import dynamic_map

LARGE = 40_000
BYTES_PER_NUMBER = 100  # of a large state, while the function runs; all distances take 1,024

MISTAKES = Mistakes(
    one_absmax="all blocks have the same absmax, that of the whole state. Take one for each block",
    signed_maximum=(
        "absmax is the largest number of a block, but its largest absolute value may belong to a "
        "negative one"
    ),
    all_distances=(
        "while it runs, the function takes {got:.0f} bytes for each number, expected at most "
        "{most}. Search the sorted levels instead of comparing each number with all of them"
    ),
)


def sized(numbers: Tensor) -> Tensor:
    """Return negative numbers of many sizes."""
    return -numbers.abs() * 10.0 ** numbers.flip(0)


def with_zeros(numbers: Tensor) -> Tensor:
    return numbers.index_fill(0, torch.arange(64, 256), 0)


SIGNED, UNSIGNED = dynamic_map(True), dynamic_map(False)
EVEN = torch.linspace(-127, 127, 255).div(127).repeat_interleave(torch.tensor([2] + [1] * 254))
CASES: dict[str, tuple[Callable[[Tensor], Tensor], int, int, Tensor]] = {
    "m in blocks of 256": (torch.clone, 1024, 256, SIGNED),
    "a shorter last block": (torch.clone, 700, 256, SIGNED),
    "one short block": (torch.clone, 5, 64, SIGNED),
    "blocks of zeros": (with_zeros, 320, 64, SIGNED),
    "negative numbers of many sizes": (sized, 999, 32, SIGNED),
    "v of small gradients": (lambda x: with_zeros(1e-30 * sized(x).square()), 513, 64, UNSIGNED),
    "blocks of zeros, even levels": (with_zeros, 1030, 128, EVEN),
    "a large state": (torch.clone, LARGE, 256, SIGNED),
}


@check_of(MISTAKES, ranks=1)
def quantize_blocks(check: Check) -> str:
    """Check codes and absmax of blocks of many sizes, and the peak memory."""
    with check.trial() as trial:
        for _, (make, length, block_size, levels) in trial.cases(CASES):
            generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
            values = make(torch.randn(length, generator=generator))
            given = values.clone(), levels.clone()
            got, peak = trial.run_function(measured, check.function, *given, block_size)
            trial.require(
                lambda: unchanged("`values`", given[0], values),
                lambda: unchanged("`levels`", given[1], levels),
                lambda: pair(got, values, block_size),
                lambda: absmax_is_right(got[1], values, block_size),
                lambda: codes_are_nearest(got[0], values, levels, block_size),
                lambda: memory_is_small(peak, length) if length >= LARGE else None,
            )
    return "the nearest levels, in whole and shorter blocks, without all distances at once"


def measured(function: Callable, *arguments: Any) -> tuple[Any, int]:
    with memory.Peak() as peak:
        got = function(*arguments)
    return got, peak.bytes


def absmax_is_right(got: Tensor, values: Tensor, block_size: int) -> Finding | None:
    blocks = blocks_of(values, block_size)
    right = blocks.abs().amax(1)
    wrong = {"one_absmax": right.max().expand_as(right), "signed_maximum": blocks.amax(1)}
    return explained(got, right, wrong, MISTAKES, "absmax")


def memory_is_small(peak: int, length: int) -> Finding | None:
    if peak <= BYTES_PER_NUMBER * length:
        return None
    return MISTAKES.all_distances(got=peak / length, most=BYTES_PER_NUMBER)
