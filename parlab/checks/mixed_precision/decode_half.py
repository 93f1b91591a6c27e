"""Exercise `decode_half`: all 65,536 patterns."""

import math
from collections.abc import Callable, Sequence

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.mixed_precision._float16 import LIBRARY, NEGATIVE, VALUES, without_library

SECONDS = 20.0

MISTAKES = Mistakes(
    **LIBRARY.texts,
    no_hidden_bit=(
        "normal numbers lack their leading 1, which is not stored: they are 2ᵉ⁻¹⁵ · (1 + m/1024)"
    ),
    wrong_bias=(
        "normal numbers have the wrong power of two: the stored exponent is that power plus 15"
    ),
    subnormal_as_normal=(
        "numbers with exponent 0 get a leading 1. They are subnormal, multiples of 2⁻²⁴ without it"
    ),
    infinity_as_number=(
        "exponent 31 is treated like exponent 30. It stands for infinity if the mantissa is 0, and "
        "otherwise for NaN"
    ),
    nan_as_infinity="exponent 31 with a mantissa other than 0 is a NaN, not an infinity",
)

CLASSES = {  # the bits without the sign
    "normal numbers": range(0x0400, 0x7C00),
    "subnormal numbers": range(0x0001, 0x0400),
    "zeros": range(1),
    "infinities and NaN": range(0x7C00, 0x8000),
}
# What a mistake makes of a class: its size by exponent and mantissa.
WRONG: tuple[tuple[str, str, Callable[[int, int], float]], ...] = (
    ("normal numbers", "no_hidden_bit", lambda e, m: 2.0 ** (e - 25) * m),
    ("normal numbers", "wrong_bias", lambda e, m: 2.0 ** (e - 16) * (1 + m / 1024)),
    ("normal numbers", "wrong_bias", lambda e, m: 2.0 ** (e - 14) * (1 + m / 1024)),
    ("normal numbers", "wrong_bias", lambda e, m: 2.0**e * (1 + m / 1024)),
    ("subnormal numbers", "subnormal_as_normal", lambda e, m: 2.0**-15 * (1 + m / 1024)),
    ("subnormal numbers", "subnormal_as_normal", lambda e, m: 2.0**-14 * (1 + m / 1024)),
    ("infinities and NaN", "infinity_as_number", lambda e, m: 2.0**16 * (1 + m / 1024)),
    ("infinities and NaN", "nan_as_infinity", lambda e, m: math.inf),
)


@check_of(MISTAKES, ranks=1)
def decode_half(check: Check) -> str:
    """Compare all patterns with torch's, one class of numbers after the other."""
    with check.trial() as trial:
        got = trial.run_function(
            lambda: [check.function(bits) for bits in range(2**16)], seconds=SECONDS
        )
        trial.require(lambda: without_library(check.function), lambda: numbers(got))
        for name, sizes in trial.cases(CLASSES):
            trial.require(lambda: decoded(got, name, sizes))
    return "all 65,536 patterns: normal, subnormal, zeros, infinities and NaN"


def numbers(got: Sequence[float]) -> Finding | None:
    """Require floats, or integers where a number is whole."""
    for bits, number in enumerate(got):
        if found := has_type(number, float | int, "a Python float"):
            return Finding(f"{found.text} (bits {bits:#06x})", found.mistake)
    return None


def decoded(got: Sequence[float], name: str, sizes: range) -> Finding | None:
    """Compare one class of numbers, of both signs."""
    patterns = [sign + size for sign in (0, NEGATIVE) for size in sizes]
    found, right = ([text(values[bits]) for bits in patterns] for values in (got, VALUES))
    if found == right:
        return None
    for kind, mistake, size in WRONG:
        if kind == name and found == [text(signed(size, bits)) for bits in patterns]:
            return getattr(MISTAKES, mistake)()
    i = next(i for i, (a, b) in enumerate(zip(found, right, strict=True)) if a != b)
    bits = patterns[i]
    return observed(f"bits {bits:#06x} ({bits:016b}) give {found[i]}, expected {right[i]}")


def signed(size: Callable[[int, int], float], bits: int) -> float:
    return math.copysign(size(bits >> 10 & 31, bits & 1023), -1 if bits & NEGATIVE else 1)


def text(number: float) -> str:
    """Return the same text for the same number: zeros have signs, and any NaN is NaN."""
    return "nan" if math.isnan(number) else repr(float(number))
