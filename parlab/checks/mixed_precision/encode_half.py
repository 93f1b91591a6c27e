"""Exercise `encode_half`: float16 numbers, and numbers between them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
# Drawn gaps, besides those where something changes. A right answer that bisects all float16 numbers
# with exact fractions must not run out of time.
DRAWN = 700
# Where a number lies in the gap between two float16 numbers.
EXACT, QUARTER, BELOW_MIDDLE, MIDDLE, ABOVE_MIDDLE, THREE_QUARTERS = range(6)

MISTAKES = Mistakes(
    **LIBRARY.texts,
    truncated=(
        "the bits that do not fit are cut off, so {value!r} becomes {got:#06x}. Round to the "
        "nearest: {right:#06x}"
    ),
    ties_away=(
        "{value!r}, halfway between two float16 numbers, becomes the larger one. If both are "
        "equally near, take the one whose last bit is 0: {right:#06x}"
    ),
    rounded_twice=(
        "{value!r} is close to the middle between two float16 numbers. It was rounded to 24 bits "
        "first, which gave exactly the middle, and then the wrong way. Round once"
    ),
    carry_lost=(
        "{value!r} rounds up to the next power of two: the mantissa becomes 0, and the exponent "
        "must grow by one"
    ),
    subnormals_flushed=(
        "{value!r} becomes zero. Below 2⁻¹⁴ there are subnormal numbers, down to 2⁻²⁴"
    ),
    saturated="{value!r} becomes ±65,504. Numbers from 65,520 upward become infinity",
)


@dataclass(frozen=True)
class Case:
    """A number with the sign bit `sign`, at `place` in the gap above the bits `below`."""

    number: float
    sign: int
    below: int
    place: int

    @property
    def right(self) -> int:
        up = self.place > MIDDLE or (self.place == MIDDLE and self.below % 2 == 1)
        return self.sign + self.below + up


# What each mistake gives, without the sign: `n` are the right bits.
WRONG: dict[str, Callable[[Case, int], int]] = {
    "truncated": lambda case, n: case.below,
    "ties_away": lambda case, n: case.below + (case.place >= MIDDLE),
    "rounded_twice": lambda case, n: (
        case.below + case.below % 2 if BELOW_MIDDLE <= case.place <= ABOVE_MIDDLE else n
    ),
    "carry_lost": lambda case, n: (
        n - 1024 if n > case.below and n % 1024 == 0 and 0x400 < n < INFINITY else n
    ),
    "subnormals_flushed": lambda case, n: 0 if case.below < 0x400 else n,
    "saturated": lambda case, n: min(n, INFINITY - 1),
}


@check_of(MISTAKES, ranks=1)
def encode_half(check: Check) -> str:
    """Check float16 numbers, what lies between them, and what is close to the middle."""
    with check.trial() as trial:
        cases = list(all_cases(trial.draw))
        given = [*(case.number for case in cases), math.nan]
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
            middle = (low + high) / 2  # exact in a float
            sizes = (
                low,
                (low + middle) / 2,
                math.nextafter(middle, 0),
                middle,
                math.nextafter(middle, math.inf),
                (middle + high) / 2,
            )
            for place, size in enumerate(sizes):
                yield Case(factor * size, sign, below, place)
        for size in (math.inf, 65536.0, 7e4, 1e10, 1.7e308):
            yield Case(factor * size, sign, INFINITY, EXACT)
        for size in (1e-9, 5e-324):
            yield Case(factor * size, sign, 0, QUARTER)


def sixteen_bits(got: Sequence[int], given: Sequence[float]) -> Finding | None:
    """Require integers from 0 to 65,535."""
    for bits, number in zip(got, given, strict=True):
        if found := has_type(bits, int, "an int"):
            return Finding(f"{found.text} (for {number!r})", found.mistake)
        if not 0 <= bits < 2**16:
            return observed(f"{number!r} becomes {bits}, expected an integer from 0 to 65,535")
    return None


def encoded(got: Sequence[int], cases: Sequence[Case]) -> Finding | None:
    """Compare with the right bits. A mistake is named if it makes nearly the same errors."""
    errors = {(i, got[i]) for i, case in enumerate(cases) if got[i] != case.right}
    if not errors:
        return None
    for mistake, rule in WRONG.items():
        ruled = [case.sign + rule(case, case.right - case.sign) for case in cases]
        expected = {(i, ruled[i]) for i, case in enumerate(cases) if ruled[i] != case.right}
        common = errors & expected
        if len(common) >= 0.9 * len(errors | expected):
            i, bits = min(common)
            case = cases[i]
            return getattr(MISTAKES, mistake)(value=case.number, got=bits, right=case.right)
    i, bits = min(errors)
    case = cases[i]
    return observed(
        f"{case.number!r} becomes {bits:#06x} ({VALUES[bits]}), expected {case.right:#06x} "
        f"({VALUES[case.right]})"
    )


def is_nan(bits: int) -> Finding | None:
    """Require the bits of any NaN."""
    if bits & 0x7FFF > INFINITY:
        return None
    return observed(f"NaN becomes {bits:#06x} ({VALUES[bits]}), expected a mantissa other than 0")
