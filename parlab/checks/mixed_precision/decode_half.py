"""Exercise `decode_half`."""

import math
from collections.abc import Callable, Iterator, Sequence

from parlab.checks.check import Check, check_of
from parlab.checks.compare import instead, is_a
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.mixed_precision.by_hand import LIBRARY, by_hand
from parlab.checks.mixed_precision.halves import INFINITY, NEGATIVE, same_number, value

SECONDS = 20.0

MISTAKES = Mistakes(
    **LIBRARY.texts,
    no_hidden_bit=(
        "the leading 1 is missing: a normal number is 2ᵉ⁻¹⁵ · (1 + m/1024), and the 1 is not stored"
    ),
    wrong_bias=(
        "normal numbers are {ratio:g} times what they should be: the stored exponent is 15 more "
        "than the power of two"
    ),
    mantissa_over_1023="the mantissa is divided by 1023: ten bits are 1024ths",
    sign_ignored="numbers with the highest bit set are not negative",
    subnormal_as_normal=(
        "with exponent 0 there is no leading 1: these are the subnormal numbers, multiples of 2⁻²⁴"
    ),
    subnormal_exponent=(
        "subnormal numbers are half of what they should be: they have the power of two of the "
        "smallest normal ones, 2⁻¹⁴, though their exponent says 0"
    ),
    subnormal_lost="subnormal numbers are all zero: exponent 0 with a mantissa is a number",
    zero_unsigned=(
        "bits 0x8000 give 0.0: they are −0.0, which compares as equal and is another number "
        "(1/x has another sign)"
    ),
    infinity_as_number=(
        "exponent 31 goes on where 30 ends: it stands for infinity where the mantissa is 0, else "
        "for NaN"
    ),
    nan_as_infinity="exponent 31 with a mantissa is a NaN, not an infinity",
    infinity_unsigned="bits 0xFC00 are −∞: an infinity has a sign",
)


@check_of(MISTAKES)
def decode_half(check: Check) -> str:
    """Check all 65,536 patterns."""
    with check.trial() as trial:
        trial.situation = "all patterns"
        right = [value(bits) for bits in range(2**16)]
        got = trial.run_function(_decoded, check.function, seconds=SECONDS)
        trial.require(
            lambda: by_hand(check.function),
            lambda: numbers(got),
            *(lambda bits=bits: decoded(got, right, bits) for bits in CLASSES),
        )
    return "all 65,536 patterns: normal, subnormal, zeros, infinities and NaN"


def _decoded(function: Callable[[int], float]) -> list[float]:
    return [function(bits) for bits in range(2**16)]


def _both_signs(first: int, last: int) -> list[int]:
    return [sign + bits for sign in (0, NEGATIVE) for bits in range(first, last + 1)]


NORMAL = _both_signs(0x0400, 0x7BFF)
SUBNORMAL = _both_signs(0x0001, 0x03FF)
ZEROS = _both_signs(0, 0)
SPECIAL = _both_signs(0x7C00, 0x7FFF)
CLASSES = (NORMAL, SUBNORMAL, ZEROS, SPECIAL)


def numbers(got: Sequence[float]) -> Finding | None:
    """Whether each is a float, or an integer, which is as good where it is a number's value."""
    for bits, one in enumerate(got):
        if found := is_a(one, float | int, "a Python float"):
            return Finding(f"{found.text} (bits {bits:#06x})", found.mistake)
    return None


def decoded(got: Sequence[float], right: Sequence[float], patterns: list[int]) -> Finding | None:
    """What is wrong with the numbers of one class of patterns."""
    mine, theirs = [got[bits] for bits in patterns], [right[bits] for bits in patterns]
    if found := instead(mine, theirs, wrong(patterns, theirs), same_number):
        return found
    for bits, one, other in zip(patterns, mine, theirs, strict=True):
        if not same_number(one, other):
            return evidence(f"bits {bits:#06x} ({bits:016b}) give {one} where {other} is right")
    return None


def wrong(patterns: list[int], right: list[float]) -> Iterator[tuple[list[float], Finding]]:
    """What each mistake makes of the patterns of a class."""

    def each(size: Callable[[int, int], float]) -> list[float]:
        return [
            math.copysign(size(bits >> 10 & 31, bits & 1023), -1 if bits & NEGATIVE else 1)
            for bits in patterns
        ]

    if patterns is NORMAL:
        yield each(lambda e, m: 2.0 ** (e - 25) * m), MISTAKES.no_hidden_bit()
        for ratio in (2.0, 0.5, 2.0**15, 2.0**-15):
            yield [ratio * x for x in right], MISTAKES.wrong_bias(ratio=ratio)
        yield each(lambda e, m: 2.0 ** (e - 15) * (1 + m / 1023)), MISTAKES.mantissa_over_1023()
    if patterns is SUBNORMAL:
        yield each(lambda e, m: 2.0**-15 * (1 + m / 1024)), MISTAKES.subnormal_as_normal()
        yield each(lambda e, m: 2.0**-14 * (1 + m / 1024)), MISTAKES.subnormal_as_normal()
        yield [x / 2 for x in right], MISTAKES.subnormal_exponent()
        yield [x * 0 for x in right], MISTAKES.subnormal_lost()
        yield [0.0 for x in right], MISTAKES.subnormal_lost()
    if patterns is ZEROS:
        yield [0.0, 0.0], MISTAKES.zero_unsigned()
    if patterns is SPECIAL:
        yield each(lambda e, m: 2.0**16 * (1 + m / 1024)), MISTAKES.infinity_as_number()
        yield each(lambda e, m: math.inf), MISTAKES.nan_as_infinity()
        yield [math.inf for _ in right], MISTAKES.nan_as_infinity()
        unsigned = [math.nan if bits & 0x7FFF > INFINITY else math.inf for bits in patterns]
        yield unsigned, MISTAKES.infinity_unsigned()
    yield [abs(x) for x in right], MISTAKES.sign_ignored()
