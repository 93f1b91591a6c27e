"""Computes the ranges and spacings of floating-point formats from their numbers of bits.

    FP16.largest            65504.0
    BF16.spacing(1.0)       0.0078125

A normal number is ±1.f × 2^exponent. A *subnormal* number is below the smallest normal one:
±0.f × 2^smallest. All sizes follow from the bits of the exponent and of the mantissa f, as in IEEE
754. Only E4M3 has its own rules (Micikevicius et al. 2022, arXiv:2209.05433, section 3): it has no
infinity and a single pattern for NaN, and uses the other patterns of the largest exponent for
numbers.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format with a sign bit, `exponent_bits`, and `mantissa_bits`.

    With `infinities`, the largest exponent is reserved for infinity and NaN. Without them, only the
    pattern of all ones is NaN.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True

    @property
    def bits(self) -> int:
        """The bits of a number, including its sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """The difference between the stored exponent and the exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def smallest_exponent(self) -> int:
        """The smallest exponent of normal numbers. Subnormal numbers have it, too."""
        return 1 - self.bias

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.infinities:
            return (2 - self.epsilon) * 2.0**self.bias
        return (2 - 2 * self.epsilon) * 2.0 ** (self.bias + 1)

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number above 0."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above 0."""
        return self.smallest_normal * self.epsilon

    @property
    def epsilon(self) -> float:
        """The step from 1 to the next number."""
        return 2.0**-self.mantissa_bits

    def spacing(self, x: float) -> float:
        """Return the step from |x| to the next larger number: twice the largest rounding error.

        Raises ValueError if |x| is larger than `largest`, or NaN.
        """
        if not abs(x) <= self.largest:
            raise ValueError(f"{self.name} ends at {self.largest:g}: there is no {x:g}")
        exponent = math.frexp(x)[1] - 1 if x else self.smallest_exponent
        return math.ldexp(self.epsilon, max(exponent, self.smallest_exponent))


FP32 = Format("fp32", 8, 23)
TF32 = Format("tf32", 8, 10)
FP16 = Format("fp16", 5, 10)
BF16 = Format("bf16", 8, 7)
E4M3 = Format("fp8 e4m3", 4, 3, infinities=False)
E5M2 = Format("fp8 e5m2", 5, 2)
FORMATS = (FP32, TF32, FP16, BF16, E4M3, E5M2)
