"""Exercise `dequantize_blocks`."""

from typing import Any

import torch
from torch import Tensor

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.unchanged import unchanged
from parlab.checks.memory._blocks import dequantized
from parlab.formats.dynamic import dynamic_map

MISTAKES = Mistakes(
    not_scaled="these are the levels themselves. Multiply each by the absmax of its block",
    interleaved=(
        "number i is multiplied by absmax[i % blocks], expected that of its block, i // block_size"
    ),
)
CASES = {  # numbers, block size, and whether the map is signed
    "blocks of 256": (1024, 256, True),
    "a shorter last block": (700, 256, True),
    "one short block": (5, 64, True),
    "v": (333, 16, False),
}


@check_of(MISTAKES, ranks=1)
def dequantize_blocks(check: Check) -> str:
    """Compare with float64, in whole and shorter blocks."""
    earlier: list[tuple[Tensor, Tensor]] = []  # results, and copies of them
    with check.trial() as trial:
        for _, (length, block_size, signed) in trial.cases(CASES):
            generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
            levels = dynamic_map(signed)
            codes = torch.randint(256, (length,), generator=generator).to(torch.uint8)
            blocks = -(-length // block_size)
            absmax = 10.0 ** torch.randint(-20, 3, (blocks,), generator=generator)
            absmax[0] = 0 if blocks > 1 else absmax[0]
            given = codes.clone(), absmax.clone(), levels.clone()
            got = trial.run(*given, block_size)
            trial.require(
                lambda: unchanged("`codes`", given[0], codes),
                lambda: unchanged("`absmax`", given[1], absmax),
                lambda: unchanged("`levels`", given[2], levels),
                lambda: numbers_are_right(got, codes, absmax, levels, block_size),
                lambda: own_memory(got, earlier),
            )
            earlier.append((got, got.clone()))
    return "each number is its level times the absmax of its block"


def numbers_are_right(
    got: Any, codes: Tensor, absmax: Tensor, levels: Tensor, block_size: int
) -> Finding | None:
    right = dequantized(codes, absmax, levels, block_size).float()
    variants = {
        "not_scaled": levels[codes.long()],
        "interleaved": levels[codes.long()] * absmax.repeat(block_size)[: len(codes)],
    }
    # Numbers may be as small as 10⁻²⁶.
    return explained(got, right, variants, MISTAKES, tolerance=1e-6, absolute=0.0)


def own_memory(got: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Finding | None:
    if any(not torch.equal(result, before) for result, before in earlier):
        return observed("this call changes the result of an earlier one. Return a new tensor")
    kept = memory.tensor_bytes([got])
    if kept <= 4 * len(got) + 4 * 256:
        return None
    return observed(f"the result keeps {kept} bytes alive, expected {4 * len(got)}")
