"""Answers to `encode_half`."""

import math
import struct
from fractions import Fraction

import numpy as np

from parlab.checks.mixed_precision._float16 import VALUES
from parlab_staff.answers import Answers

answers = Answers("encode_half")
REFERENCE = answers.reference()

SIGN = "sign = 0x8000 if math.copysign(1.0, value) < 0 else 0"
COMPARED = "sign = 0x8000 if value < 0 else 0"
NAN = "return sign | 0x7E00"
OVERFLOW = "if size >= 65520:\n        return sign | 0x7C00"
STEP = "step = max(math.frexp(size)[1] - 11, -24) if size else -24"
ROUND = "steps = round(math.ldexp(size, -step))"
RETURN = "return sign | (step + 24) * 1024 + steps"
ZERO_LIKE_OTHERS = (STEP, STEP.replace(" if size else -24", ""))

answers.edit("truncated", "cut_off", (ROUND, ROUND.replace("round(", "int(")))
answers.edit(
    "ties_not_to_even", "as_in_school", (ROUND, "steps = int(math.ldexp(size, -step) + 0.5)")
)
answers.edit(
    None,
    "mantissa_masked",
    (RETURN, "hidden = 1024 if steps >= 1024 else 0\n    "
             "return sign | (step + 24) * 1024 + hidden + steps % 1024"),
)  # fmt: skip
answers.edit(
    "subnormals_flushed",
    "no_subnormals",
    (ROUND, "if size < 2**-14:\n        return sign\n    " + ROUND),
)
answers.edit("saturated", "largest_half", (OVERFLOW, OVERFLOW.replace("0x7C00", "0x7BFF")))
answers.edit(None, "frexp_of_zero", ZERO_LIKE_OTHERS)
answers.edit(
    "ties_not_to_even", "ties_to_zero", (ROUND, "steps = math.ceil(math.ldexp(size, -step) - 0.5)")
)
answers.edit(None, "above_the_largest", ("if size >= 65520:", "if size > 65504:"))
answers.edit(None, "compared", (SIGN, COMPARED), says="-0.0 becomes 0x0000")
answers.edit(None, "no_sign", (SIGN, "sign = 0"))
answers.edit(None, "minus_the_highest_bit", (SIGN, SIGN.replace("0x8000", "-0x8000")))
answers.edit(None, "nan_is_infinite", (NAN, "return sign | 0x7C00"), says="NaN becomes 0x7c00")
answers.right_edit("another_nan", (NAN, "return 0x7C01"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit("wrong_type", "a_float", (RETURN, "return float(sign + (step + 24) * 1024 + steps)"))


@answers.wrong("rounded_twice")
def through_float32(value):
    if math.isfinite(value):
        fraction, exponent = math.frexp(value)
        value = math.copysign(math.ldexp(round(fraction * 2**24), exponent - 24), value)
    return REFERENCE(value)


@answers.wrong("converted_by_library")
def numpy_does_it(value):
    with np.errstate(over="ignore"):
        return int(np.float16(value).view(np.uint16))


@answers.wrong("converted_by_library")
def struct_does_it(value):
    return int.from_bytes(struct.pack("<e", value), "little") if abs(value) < 65520 else 0x7C00


@answers.right
def by_fractions(value):
    """A Fraction too is rounded to the nearest integer, ties to even."""
    sign = 0x8000 if str(value)[0] == "-" else 0
    if value != value:
        return 0xFFFF
    size = abs(value)
    if size >= 2**16:
        return sign | 0x7C00
    step = 0
    while size >= 2 ** (step - 13):
        step += 1
    return sign | step * 1024 + round(Fraction(size) * 2**24 / 2**step)


@answers.right
def bisected_with_fractions(value):
    """Slow: 0.2 ms for each number."""
    sign = 0x8000 * (math.copysign(1, value) < 0)
    if math.isnan(value):
        return 0x7E00
    size = abs(value)
    if size >= 65520:
        return sign + 0x7C00
    exact = Fraction(size)
    low, high = 0, 0x7C00
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if Fraction(VALUES[middle]) <= exact else (low, middle)
    top = Fraction(65536) if high == 0x7C00 else Fraction(VALUES[high])
    below, above = exact - Fraction(VALUES[low]), top - exact
    return sign + (high if above < below or (above == below and low % 2) else low)


@answers.right
def parts_apart(value):
    """Exponent and mantissa apart, with each carry by hand."""
    sign = 1 if math.copysign(1.0, value) == -1.0 else 0
    if math.isnan(value):
        return sign << 15 | 31 << 10 | 1
    if math.isinf(value):
        return sign << 15 | 31 << 10
    size = abs(value)
    if size < 2.0**-14:
        exponent, mantissa = 0, round(size * 2.0**24)
    else:
        power = math.floor(math.log2(size))
        power -= size < 2.0**power
        exponent, mantissa = power + 15, round((size / 2.0**power - 1) * 1024)
    if mantissa == 1024:
        exponent, mantissa = exponent + 1, 0
    if exponent >= 31:
        exponent, mantissa = 31, 0
    return sign << 15 | exponent << 10 | mantissa


@answers.right
def negative_first(value):
    if value < 0 or (value == 0 and math.copysign(1, value) < 0):
        return 0x8000 | REFERENCE(-value)
    return REFERENCE(value) & 0x7FFF
