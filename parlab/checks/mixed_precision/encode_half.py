"""Exercise `encode_half`."""

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

from parlab.checks.check import Check, check_of
from parlab.checks.compare import is_a
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.mixed_precision.by_hand import LIBRARY, by_hand
from parlab.checks.mixed_precision.halves import INFINITY, NEGATIVE, value

SECONDS = 20.0
BETWEEN = 3000  # pairs of neighbours that are tried, besides those where something changes

Case = tuple[float, int]  # a value, and the bits of the half nearest to it

MISTAKES = Mistakes(
    **LIBRARY.texts,
    truncated=(
        "{value!r} becomes {got:#06x}, the half below it, and {right:#06x} is nearer: the bits "
        "that do not fit are cut off where they should round"
    ),
    ties_away=(
        "{value!r} is halfway between two halves, and becomes the larger: of two that are equally "
        "near, take the one whose last bit is 0 ({right:#06x})"
    ),
    ties_down=(
        "{value!r} is halfway between two halves, and becomes the smaller: of two that are equally "
        "near, take the one whose last bit is 0 ({right:#06x})"
    ),
    rounded_twice=(
        "{value!r} is not quite halfway between two halves: rounded to fewer digits first, such as "
        "a float32's, it is, and then goes the wrong way. Round once, straight to the half"
    ),
    carry_lost=(
        "{value!r} rounds up to the next power of two: the mantissa is full and becomes 0, and the "
        "exponent must grow by one"
    ),
    subnormals_flushed=(
        "{value!r} becomes zero: below 2⁻¹⁴ there are subnormal halves, down to 2⁻²⁴"
    ),
    saturated="{value!r} becomes ±65,504: what is nearer to 65,536, or halfway, becomes infinity",
    overflows_early=(
        "{value!r} becomes infinity: everything nearer to 65,504 than to 65,536 rounds to 65,504"
    ),
    zero_unsigned="{value!r} becomes 0x0000: a zero keeps the sign, 0x8000",
    zero_as_number=(
        "{value!r} becomes {got:#06x}, which is no zero: all bits of a zero but the sign are 0. "
        "(`math.frexp` gives zero the exponent 0, as if it were between a half and 1)"
    ),
    sign_lost="{value!r} becomes {got:#06x}: the highest bit is the sign",
    nan_lost="NaN becomes {got:#06x}: exponent 31 with a mantissa other than 0 is a NaN",
)


@check_of(MISTAKES)
def encode_half(check: Check) -> str:
    """Check all halves, and what lies between them: the middle, and what is a little off it."""
    with check.trial() as trial:
        trial.situation = "halves, and what lies between them"
        cases = list(all_cases(trial.draw))
        got = trial.run_function(_encoded, check.function, cases, seconds=SECONDS)
        trial.require(
            lambda: by_hand(check.function),
            lambda: bits(got, cases),
            lambda: encoded(got, cases),
            lambda: not_a_number(got[-1]),
        )
    return (
        "all halves; what lies between them, to the nearest and ties to even; overflow, underflow, "
        "both zeros, NaN"
    )


def _encoded(function: Callable[[float], int], cases: Sequence[Case]) -> list[int]:
    return [function(one) for one, _ in cases] + [function(math.nan)]


def all_cases(draw: Random) -> Iterator[Case]:
    """Values that are no NaN, with the bits that are right, both known by construction."""
    edges = [0, 1, 2, 0x3FE, 0x3FF, 0x400, INFINITY - 2, INFINITY - 1]
    edges += [1024 * e + step for e in range(1, 31) for step in (-1, 0)]
    between = [*edges, *draw.sample(range(INFINITY), BETWEEN)]
    for sign in (0, NEGATIVE):
        factor = -1.0 if sign else 1.0
        for bits in between:
            low, high = value(bits), value(bits + 1)
            middle = (low + min(high, 65536.0)) / 2  # in a float, exactly
            yield factor * middle, sign + bits + bits % 2
            yield factor * (low + middle) / 2, sign + bits
            yield factor * math.nextafter(middle, 0), sign + bits
            yield factor * math.nextafter(middle, math.inf), sign + bits + 1
            yield factor * (1.5 * middle - low / 2), sign + bits + 1
        for bits in range(INFINITY + 1):
            yield factor * value(bits), sign + bits
        for huge in (65536.0, 7e4, 1e10, 1.7e308):
            yield factor * huge, sign + INFINITY
        for tiny in (1e-9, 5e-324):
            yield factor * tiny, sign


def bits(got: Sequence[int], cases: Sequence[Case]) -> Finding | None:
    """Whether each is sixteen bits."""
    for one, (number, _) in zip(got, [*cases, (math.nan, 0)], strict=True):
        if found := is_a(one, int, "an int"):
            return Finding(f"{found.text} ({number!r} was given)", found.mistake)
        if not 0 <= one < 2**16:
            return evidence(f"{number!r} becomes {one}: sixteen bits are an integer below 65,536")
    return None


def encoded(got: Sequence[int], cases: Sequence[Case]) -> Finding | None:
    """What is wrong with the first, where each mistake is looked for in all of them."""
    wrong = [
        (number, one, right)
        for one, (number, right) in zip(got, cases, strict=False)
        if one != right
    ]
    if not wrong:
        return None
    # One that explains all that is wrong is the mistake, or most: others show when it is mended.
    for share in (1.0, 0.5):
        for finding, explains in EXPLANATIONS:
            known = [case for case in wrong if explains(*case)]
            if known and len(known) >= share * len(wrong):
                number, one, right = known[0]
                return finding(value=number, got=one, right=right)
    number, one, right = wrong[0]
    return evidence(
        f"{number!r} becomes {one:#06x} ({value(one)}) where {right:#06x} ({value(right)}) is right"
    )


def _middle(number: float, right: int) -> float:
    """Halfway between the two halves around a number that is nearest to `right`."""
    size, nearest = abs(number), right & 0x7FFF
    other = nearest + 1 if size > value(nearest) else nearest - 1
    ends = sorted((nearest, max(other, 0)))
    return (value(ends[0]) + min(value(ends[1]), 65536.0)) / 2


def _tie(number: float, right: int) -> bool:
    return abs(number) == _middle(number, right)


def _as_float32(number: float) -> float:
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(math.ldexp(fraction, 24)), exponent - 24)


def _below(number: float, right: int) -> bool:
    return abs(number) < value(right & 0x7FFF)


# The mistakes, in the order in which they are looked for: is it one for which `x` becomes `got`?
EXPLANATIONS: tuple[tuple[Callable[..., Finding], Callable[[float, int, int], bool]], ...] = (
    (MISTAKES.zero_unsigned, lambda x, got, right: right == NEGATIVE and got == 0),
    (MISTAKES.zero_as_number, lambda x, got, right: x == 0 and got & 0x7FFF != 0),
    (MISTAKES.sign_lost, lambda x, got, right: got == right & 0x7FFF),
    (
        MISTAKES.saturated,
        lambda x, got, right: right & 0x7FFF == INFINITY and got == right - 1,
    ),
    (
        MISTAKES.overflows_early,
        lambda x, got, right: right & 0x7FFF == INFINITY - 1 and got == right + 1,
    ),
    (
        MISTAKES.carry_lost,
        lambda x, got, right: right % 1024 == 0 and got == right - 1024 and _below(x, right),
    ),
    (
        MISTAKES.subnormals_flushed,
        lambda x, got, right: 0 < right & 0x7FFF <= 0x400 and got & 0x7FFF == 0,
    ),
    (
        MISTAKES.rounded_twice,
        lambda x, got, right: (
            not _tie(x, right)
            and _as_float32(abs(x)) == _middle(x, right)
            and abs(got - right) == 1
        ),
    ),
    (MISTAKES.ties_away, lambda x, got, right: _tie(x, right) and got == right + 1),
    (MISTAKES.ties_down, lambda x, got, right: _tie(x, right) and got == right - 1),
    (MISTAKES.truncated, lambda x, got, right: got == right - 1 and _below(x, right)),
)


def not_a_number(got: int) -> Finding | None:
    if got & 0x7FFF > INFINITY:
        return None
    return MISTAKES.nan_lost(got=got)
