"""All halves, in order: worked out from what a half is, and by no library."""

import math

INFINITY = 0x7C00
NEGATIVE = 0x8000


def value(bits: int) -> float:
    """What the bits of a half stand for."""
    exponent, mantissa = (bits & 0x7FFF) // 1024, bits % 1024
    if exponent == 31:
        size = math.nan if mantissa else math.inf
    else:
        size = (mantissa + 1024 * (exponent > 0)) * 2.0 ** (max(exponent, 1) - 25)
    return math.copysign(size, -1.0 if bits & NEGATIVE else 1.0)


def same_number(got: float, right: float) -> bool:
    """Whether two floats are the same, where zeros have signs and a NaN is like any other."""
    if math.isnan(right):
        return math.isnan(got)
    return got == right and math.copysign(1, got) == math.copysign(1, right)
