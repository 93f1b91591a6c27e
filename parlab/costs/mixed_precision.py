"""Mixed precision: bytes of a recipe, numbers that a format loses, and errors of a sum over ranks.

Micikevicius et al. 2018 (arXiv:1710.03740) for master weights, updates that vanish and loss scales;
Korthikanti et al. 2022 (arXiv:2205.05198) for activations. Errors are those of rounding to the
nearest number, ties to even.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parlab.costs import zero
from parlab.costs.tensor_parallel import Layer
from parlab.formats import Format

# What training with Adam keeps for each parameter. What autocast has cast for the forward pass is
# kept until the backward pass is done with it.
RECIPES: Mapping[str, zero.Recipe] = {
    "fp32": zero.FLOAT32_ADAM,
    "16-bit weights and gradients, master weights": zero.MIXED_ADAM,
    "16-bit weights, fp32 gradients, master weights": zero.Recipe(2, 4, 12),
    "autocast": zero.Recipe(4 + 2, 4, 8),
    "16-bit throughout": zero.Recipe(2, 2, 4),
}


def activation_bytes(layer: Layer, element_bytes: int = 2) -> float:
    """Bytes that a transformer layer keeps for its backward pass, with numbers of e bytes.

    (16e + 2)·sbh + (2e + 1)·as²b: the paper's sbh(34 + 5as/h) for e = 2, told apart into numbers
    and the masks of dropout, which stay at a byte each (Korthikanti et al., section 4.1).
    """
    scores = layer.heads * layer.sequence**2 * layer.batch
    return (16 * element_bytes + 2) * layer.numbers + (2 * element_bytes + 1) * scores


def largest_lost_update(of: Format, weight: float) -> float:
    """The largest update that may leave `weight` as it is: half the step to its neighbor.

    Exactly half is a tie, which goes to the even neighbor: every other weight stays. Away from 0
    only: below a power of two the numbers lie twice as close.
    """
    return of.spacing(weight) / 2


@dataclass(frozen=True)
class Shares:
    """What becomes of numbers in a format, in shares of all: their sum is 1."""

    lost: float  # to 0
    subnormal: float  # kept, with fewer bits
    normal: float
    overflow: float


def shares(exponents: Mapping[int, float], of: Format, scale: float = 1.0) -> Shares:
    """What becomes of numbers, counted by exponent, when they are multiplied and then rounded.

    `exponents[e]` counts numbers x with 2^e ≤ |x| < 2^(e+1). The `scale` is a power of two, so each
    count moves as a whole. A count belongs where its smallest number goes, so it is exact but for
    the octaves of the largest number and of half the smallest (where 2^e itself is a tie).
    Raises ValueError for another scale, and where nothing was counted.
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
    """Where numbers from 2^e on go, up to twice that: a field of `Shares`."""
    if exponent >= of.smallest_exponent:
        return "normal" if 2.0**exponent <= of.largest else "overflow"
    # From half the smallest number on, rounding is up to it.
    half = of.smallest_exponent - of.mantissa_bits - 1
    return "subnormal" if exponent >= half else "lost"


def scales_between(
    exponents: Mapping[int, float], of: Format, most_lost: float = 0.0
) -> tuple[float, float]:
    """The smallest scale that loses at most this share, and the largest that surely overflows none.

    Both are powers of two, and may be below 1. The format cannot hold all where the first is above
    the second.
    """
    counted = sorted(e for e, count in exponents.items() if count)
    # With all of them lost at first, a scale too many is never tried.
    shift = of.smallest_exponent - of.mantissa_bits - 2 - counted[-1]
    while shares(exponents, of, 2.0**shift).lost > most_lost:
        shift += 1
    # Numbers of the highest octave end below 2^(e+1).
    highest = math.frexp(of.largest)[1] - 1 - (counted[-1] + 1)
    return 2.0**shift, 2.0**highest


def rounding_error(of: Format) -> float:
    """Root mean square of the relative error of rounding a number once.

    The error is anywhere within half a step either way, and numbers 1.f are spread evenly over the
    logarithm: ε·√(3/(8 ln 2)/12), about 0.21ε.
    """
    return of.epsilon * math.sqrt(3 / (8 * math.log(2)) / 12)


def sum_error(of: Format, world_size: int) -> float:
    """Root mean square error of a sum over N ranks, over that of the sum: ρ·√((N+1)/2 − 1/N + 1).

    Each rank rounds its number, and each addition rounds what it has got so far: on a ring, one
    rank after the other. Numbers are independent of each other, with mean 0, as gradients are that
    are mostly noise: the sum of k is √k times as large as one, and so is its error. ρ is
    `rounding_error`. A division by N, a power of two, adds nothing wherever it stands.
    """
    _check(world_size)
    if world_size == 1:
        return rounding_error(of)
    return rounding_error(of) * math.sqrt((world_size + 1) / 2 - 1 / world_size + 1)


def tree_sum_error(of: Format, world_size: int) -> float:
    """The same where pairs are added, then pairs of pairs: ρ·√(log₂N + 1)."""
    _check(world_size)
    return rounding_error(of) * math.sqrt(math.log2(world_size) + 1)


def most_ranks(of: Format, value: float) -> int:
    """The largest N for which the sum of N times `value`, rounded once, is finite.

    Divide by N before the sum, and it is finite for any. Raises ValueError for 0.
    """
    if not value:
        raise ValueError("a sum of zeros never overflows")
    # Rounding is to infinity from half a step beyond the largest number on. There it is a tie,
    # which goes to the even neighbor: the largest number, only where there is no infinity.
    count = (of.largest + of.spacing(of.largest) / 2) / abs(value)
    return math.ceil(count) - 1 if of.infinities else math.floor(count)


def reduction_window(
    smallest: float, largest: float, world_size: int, divide_before: float, *, equal: bool
) -> tuple[float, float]:
    """Return the smallest and the largest gradient for which a mean over N ranks is accurate.

    A rank stores its gradient, the gradient over `divide_before`, their sum over N ranks, and the
    mean. All four must lie between `smallest` and `largest`. A sum of `equal` gradients is N times
    as large as one of them, and a sum of independent ones √N times.
    """
    _check(world_size)
    growth = world_size if equal else math.sqrt(world_size)
    stored = (1, 1 / divide_before, growth / divide_before, growth / world_size)
    return smallest / min(stored), largest / max(stored)


def swallowed_from(of: Format) -> int:
    """How many equal numbers add up one by one before the sum stands still: 2^(mantissa bits + 1).

    From there on one more is half a step, a tie that goes back.
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
