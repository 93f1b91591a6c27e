"""Mixed precision: bytes of a recipe, numbers that a format loses, and errors of a sum over ranks.

Micikevicius et al. 2018 (arXiv:1710.03740) for master weights, updates that vanish, and loss
scales; Korthikanti et al. 2022 (arXiv:2205.05198) for activations. Numbers are rounded to the
nearest number, ties to even.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parlab.costs import zero
from parlab.costs.tensor_parallel import Layer
from parlab.formats import Format

# The bytes that training with Adam keeps for each parameter. autocast keeps its casts for the
# forward pass until the backward pass has used them.
RECIPES: Mapping[str, zero.Recipe] = {
    "fp32": zero.FLOAT32_ADAM,
    "16-bit weights and gradients, master weights": zero.MIXED_ADAM,
    "16-bit weights, fp32 gradients, master weights": zero.Recipe(2, 4, 12),
    "autocast": zero.Recipe(4 + 2, 4, 8),
    "16-bit throughout": zero.Recipe(2, 2, 4),
}


def activation_bytes(layer: Layer, element_bytes: int = 2) -> float:
    """Return the bytes that a transformer layer keeps for its backward pass, with e-byte numbers.

    They are (16e + 2)·sbh + (2e + 1)·as²b. For e = 2, this is the paper's sbh(34 + 5as/h), in which
    the masks of dropout take one byte each (Korthikanti et al., section 4.1).
    """
    scores = layer.heads * layer.sequence**2 * layer.batch
    return (16 * element_bytes + 2) * layer.numbers + (2 * element_bytes + 1) * scores


def largest_lost_update(of: Format, weight: float) -> float:
    """Return the largest update that may not change `weight`: half of the step to its neighbor.

    Exactly half is a tie, which rounds to the even neighbor, so every other weight does not change.
    This holds for updates away from 0, because numbers below a power of two are twice as close.
    """
    return of.spacing(weight) / 2


@dataclass(frozen=True)
class Shares:
    """The shares of numbers by what a format does to them. Their sum is 1."""

    lost: float  # rounded to 0
    subnormal: float  # kept, with fewer bits
    normal: float
    overflow: float


def shares(exponents: Mapping[int, float], of: Format, scale: float = 1.0) -> Shares:
    """Return the shares of numbers after they are multiplied by `scale` and rounded.

    `exponents[e]` counts numbers x with 2^e ≤ |x| < 2^(e+1). The `scale` is a power of two, so all
    numbers of a count keep a common exponent. Each count is treated like its smallest number, which
    is exact except in the octaves of the largest number and of half the smallest (where 2^e itself
    is a tie). Raises ValueError for another scale, and if no number was counted.
    """
    shift = _power(scale)
    total = sum(exponents.values())
    if not total:
        raise ValueError("no number was counted: there are no shares of nothing")
    counts = dict.fromkeys(("lost", "subnormal", "normal", "overflow"), 0.0)
    for exponent, count in exponents.items():
        counts[fate(exponent + shift, of)] += count
    return Shares(**{name: count / total for name, count in counts.items()})


def fate(exponent: int, of: Format) -> str:
    """Return the field of `Shares` to which numbers from 2^e up to 2^(e+1) belong."""
    if exponent >= of.smallest_exponent:
        return "normal" if 2.0**exponent <= of.largest else "overflow"
    # Numbers from half the smallest one are rounded up to it.
    half = of.smallest_exponent - of.mantissa_bits - 1
    return "subnormal" if exponent >= half else "lost"


def scales_between(
    exponents: Mapping[int, float], of: Format, most_lost: float = 0.0
) -> tuple[float, float]:
    """Return the smallest scale that loses at most `most_lost`, and the largest safe scale.

    A safe scale surely prevents overflow, whatever the mantissas. Both are powers of two, and may
    be below 1. If the first is larger than the second, the format cannot represent all numbers.
    """
    counted = sorted(e for e, count in exponents.items() if count)
    # Start with a scale that loses all numbers, so that no smaller scale works.
    shift = of.smallest_exponent - of.mantissa_bits - 2 - counted[-1]
    while shares(exponents, of, 2.0**shift).lost > most_lost:
        shift += 1
    # Numbers of the highest octave are less than 2^(e+1).
    highest = math.frexp(of.largest)[1] - 1 - (counted[-1] + 1)
    return 2.0**shift, 2.0**highest


def rounding_error(of: Format) -> float:
    """Return the root mean square of the relative error of rounding a number once.

    Errors are uniform within half a step in both directions, and numbers 1.f are uniform on a
    logarithmic scale. This gives ε·√(3/(8 ln 2)/12), about 0.21ε.
    """
    return of.epsilon * math.sqrt(3 / (8 * math.log(2)) / 12)


def sum_error(of: Format, world_size: int) -> float:
    """Return the relative error of a sum over N ranks on a ring: ρ·√((N+1)/2 − 1/N + 1).

    It is the root mean square of the error, divided by that of the sum. ρ is `rounding_error`. Each
    rank rounds its number, and each addition, one rank after the other, rounds the sum so far.
    Numbers are independent with mean 0, like gradients that are mostly noise, so the sum of k is √k
    times as large as one number, and so is its error. Dividing by N at any point adds no error if N
    is a power of two.
    """
    _check(world_size)
    return rounding_error(of) * math.sqrt((world_size + 1) / 2 - 1 / world_size + 1)


def tree_sum_error(of: Format, world_size: int) -> float:
    """Return the relative error of adding pairs, then pairs of pairs, …: ρ·√(log₂N + 1)."""
    _check(world_size)
    return rounding_error(of) * math.sqrt(math.log2(world_size) + 1)


def most_ranks(of: Format, value: float) -> int:
    """Return the largest N for which the sum of N times `value`, rounded once, is finite.

    If ranks divide by N before the sum, it is finite for any N. Raises ValueError for 0.
    """
    if not value:
        raise ValueError("a sum of zeros never overflows")
    # Numbers from half a step beyond the largest one are rounded to infinity. Exactly half is a
    # tie, which is rounded to the largest number only in formats without infinity.
    count = (of.largest + of.spacing(of.largest) / 2) / abs(value)
    return math.ceil(count) - 1 if of.infinities else math.floor(count)


def reduction_window(
    smallest: float, largest: float, world_size: int, divide_before: float, *, equal: bool
) -> tuple[float, float]:
    """Return the smallest and the largest gradient for which a mean over N ranks is accurate.

    A rank stores its gradient, the gradient divided by `divide_before`, the sum of these over N
    ranks, and the mean. All four must lie between `smallest` and `largest`. A sum of `equal`
    gradients is N times as large as one gradient, and a sum of independent gradients √N times.
    """
    _check(world_size)
    growth = world_size if equal else math.sqrt(world_size)
    stored = (1, 1 / divide_before, growth / divide_before, growth / world_size)
    return smallest / min(stored), largest / max(stored)


def swallowed_from(of: Format) -> int:
    """Return how many equal numbers can be added before the sum stops growing: 2^(bits + 1).

    `bits` is the number of mantissa bits. After that, one more number is half a step, a tie that is
    rounded down.
    """
    return 2 ** (of.mantissa_bits + 1)


def _power(scale: float) -> int:
    fraction, exponent = math.frexp(scale)
    if fraction != 0.5:
        raise ValueError(f"a scale is a power of two here, not {scale:g}")
    return exponent - 1


def _check(world_size: int) -> None:
    if world_size < 1:
        raise ValueError(f"a world has at least one rank, not {world_size}")
