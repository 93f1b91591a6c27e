"""Exercise `encode_half`: float16 numbers, and numbers between them."""

import math
from collections.abc import Iterator, Sequence
from random import Random

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.mixed_precision._float16 import (
    INFINITY,
    LIBRARY,
    NEGATIVE,
    VALUES,
    without_library,
)

SECONDS = 20.0
# The number of random gaps, besides those where something changes. A right answer that bisects all
# float16 numbers with exact fractions must not run out of time.
DRAWN = 700
# The position of a number in the gap between two float16 numbers, in the order of comparison.
EXACT, QUARTER, THREE_QUARTERS, MIDDLE, NEAR_MIDDLE = range(5)

MISTAKES = Mistakes(
    **LIBRARY.texts,
    truncated=(
        "the bits that do not fit are cut off, so {value!r} becomes {got:#06x}. Round to the "
        "nearest: {right:#06x}"
    ),
    ties_not_to_even=(
        "{value!r}, halfway between two float16 numbers, becomes {got:#06x}. If both are equally "
        "near, take the one whose last bit is 0: {right:#06x}"
    ),
    rounded_twice=(
        "{value!r}, close to the middle between two float16 numbers, becomes {got:#06x}, which is "
        "the farther one. A number that is first rounded to fewer bits can become exactly the "
        "middle. Round once"
    ),
    subnormals_flushed=(
        "{value!r} becomes zero. Below 2⁻¹⁴ there are subnormal numbers, down to 2⁻²⁴"
    ),
    saturated="{value!r} becomes ±65,504. Numbers from 65,520 upward become infinity",
)

Case = tuple[float, int, int]  # a number, its right bits, and its position


@check_of(MISTAKES, ranks=1)
def encode_half(check: Check) -> str:
    """Check float16 numbers, numbers between them, and numbers close to the middle."""
    with check.trial() as trial:
        cases = sorted(all_cases(trial.draw), key=lambda case: case[2])
        given = [*(number for number, _, _ in cases), math.nan]
        got = trial.run_function(lambda: [check.function(x) for x in given], seconds=SECONDS)
        trial.require(
            lambda: without_library(check.function),
            lambda: sixteen_bits(got, given),
            lambda: encoded(got[:-1], cases),
            lambda: is_nan(got[-1]),
        )
    return (
        "halves; what lies between them, to the nearest and ties to even; overflow, underflow, "
        "both zeros, NaN"
    )


def all_cases(draw: Random) -> Iterator[Case]:
    """Yield numbers whose right bits are known by construction."""
    edges = [0, 1, 2, 0x3FE, 0x3FF, 0x400, INFINITY - 2, INFINITY - 1]
    edges += [1024 * e + step for e in range(1, 31) for step in (-1, 0)]
    gaps = [*edges, *draw.sample(range(INFINITY), DRAWN)]
    for sign, factor in ((0, 1.0), (NEGATIVE, -1.0)):
        for below in gaps:
            low, high = VALUES[below], min(VALUES[below + 1], 65536.0)
            middle, even = (low + high) / 2, below + below % 2  # exact in a float
            for size, right, place in (
                (low, below, EXACT),
                ((low + middle) / 2, below, QUARTER),
                ((middle + high) / 2, below + 1, THREE_QUARTERS),
                (middle, even, MIDDLE),
                (math.nextafter(middle, 0), below, NEAR_MIDDLE),
                (math.nextafter(middle, math.inf), below + 1, NEAR_MIDDLE),
            ):
                yield factor * size, sign + right, place
        for size in (math.inf, 65536.0, 7e4, 1e10, 1.7e308):
            yield factor * size, sign + INFINITY, EXACT
        for size in (1e-9, 5e-324):
            yield factor * size, sign, QUARTER


def sixteen_bits(got: Sequence[int], given: Sequence[float]) -> Finding | None:
    """Require integers from 0 to 65,535."""
    for bits, number in zip(got, given, strict=True):
        if found := has_type(bits, int, "an int"):
            return Finding(f"{found.text} (for {number!r})", found.mistake)
        if not 0 <= bits < 2**16:
            return observed(f"{number!r} becomes {bits}, expected an integer from 0 to 65,535")
    return None


def encoded(got: Sequence[int], cases: Sequence[Case]) -> Finding | None:
    """Compare with the right bits. The first wrong number determines the mistake."""
    truncates = all(
        bits == right - 1
        for bits, (_, right, place) in zip(got, cases, strict=True)
        if place == THREE_QUARTERS and right & 0x7FFF < INFINITY
    )
    for bits, (number, right, place) in zip(got, cases, strict=True):
        if bits == right:
            continue
        neighbor, size = abs(bits - right) == 1, right & 0x7FFF
        for mistake, made in {
            "saturated": size == INFINITY and bits == right - 1,
            "subnormals_flushed": place == EXACT and 0 < size < 0x400 and bits in (0, NEGATIVE),
            "truncated": place == THREE_QUARTERS and truncates,
            "ties_not_to_even": place == MIDDLE and neighbor,
            "rounded_twice": place == NEAR_MIDDLE and neighbor,
        }.items():
            if made:
                return getattr(MISTAKES, mistake)(value=number, got=bits, right=right)
        return observed(
            f"{number!r} becomes {bits:#06x} ({VALUES[bits]}), expected {right:#06x} "
            f"({VALUES[right]})"
        )
    return None


def is_nan(bits: int) -> Finding | None:
    """Require the bits of any NaN."""
    if bits & 0x7FFF > INFINITY:
        return None
    return observed(f"NaN becomes {bits:#06x} ({VALUES[bits]}), expected a mantissa other than 0")
