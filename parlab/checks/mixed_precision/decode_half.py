"""Exercise `decode_half`: all 65,536 patterns."""

import math
from collections.abc import Sequence

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.mixed_precision._float16 import LIBRARY, NEGATIVE, VALUES, without_library

SECONDS = 20.0

WRONG = "bits {bits:#06x} ({bits:016b}) give {got}, expected {right}. "
MISTAKES = Mistakes(
    **LIBRARY.texts,
    normal_numbers=(
        WRONG + "Normal numbers are ±2ᵉ⁻¹⁵ · (1 + m/1024): the leading 1 is not stored, and the "
        "stored exponent is the power of two plus 15"
    ),
    subnormal_numbers=(
        WRONG + "Numbers with exponent 0 are subnormal: multiples of 2⁻²⁴, without a leading 1"
    ),
    sign=WRONG + "Only the sign is wrong, which is the first bit of all numbers",
    zeros=WRONG + "Both zeros have the exponent 0 and the mantissa 0",
    infinities_and_nan=(
        WRONG + "Exponent 31 stands for infinity if the mantissa is 0, and otherwise for NaN"
    ),
)

CLASSES = {  # the bits without the sign
    "normal_numbers": range(0x0400, 0x7C00),
    "subnormal_numbers": range(0x0001, 0x0400),
    "zeros": range(1),
    "infinities_and_nan": range(0x7C00, 0x8000),
}


@check_of(MISTAKES, ranks=1)
def decode_half(check: Check) -> str:
    """Compare all patterns with torch's, one class of numbers after the other."""
    with check.trial() as trial:
        got = trial.run_function(
            lambda: [check.function(bits) for bits in range(2**16)], seconds=SECONDS
        )
        trial.require(
            lambda: without_library(check.function), lambda: numbers(got), lambda: decoded(got)
        )
    return "all 65,536 patterns: normal, subnormal, zeros, infinities and NaN"


def numbers(got: Sequence[float]) -> Finding | None:
    """Require floats, or integers where a number is whole."""
    for bits, number in enumerate(got):
        if found := has_type(number, float | int, "a Python float"):
            return Finding(f"{found.text} (bits {bits:#06x})", found.mistake)
    return None


def decoded(got: Sequence[float]) -> Finding | None:
    """Compare all numbers, one class after the other, of both signs."""
    for mistake, sizes in CLASSES.items():
        for bits in (sign + size for sign in (0, NEGATIVE) for size in sizes):
            found, right = text(got[bits]), text(VALUES[bits])
            if found != right == text(-float(found)) and mistake != "zeros":
                return MISTAKES.sign(bits=bits, got=found, right=right)
            if found != right:
                return getattr(MISTAKES, mistake)(bits=bits, got=found, right=right)
    return None


def text(number: float) -> str:
    """Return a text that is unique for each number. Zeros have signs, and all NaNs are equal."""
    return "nan" if math.isnan(number) else repr(float(number))
