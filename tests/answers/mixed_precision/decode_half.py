"""Answers to `decode_half`."""

import math
from fractions import Fraction

import numpy as np

from parlab_staff.answers import Answers

answers = Answers("decode_half")
REFERENCE = answers.reference()

SIGN = "sign = -1.0 if bits >> 15 else 1.0"
SPECIAL = "return math.nan if mantissa else sign * math.inf"
SUBNORMAL = "return sign * math.ldexp(mantissa, -24)"
NORMAL = "return sign * math.ldexp(1024 + mantissa, exponent - 25)"
ZERO = "if not bits & 0x7FFF:\n        return 0.0\n    if exponent == 31:"

answers.edit("normal_numbers", "stored_bits_only", (NORMAL, NORMAL.replace("1024 + ", "")))
answers.edit("normal_numbers", "no_bias", (NORMAL, NORMAL.replace("- 25", "- 10")))
answers.edit(
    "subnormal_numbers", "no_subnormals", ("if exponent == 0:", "if exponent == mantissa == 0:")
)
answers.edit("infinities_and_nan", "finite_only", ("if exponent == 31:", "if exponent == 32:"))
answers.edit("infinities_and_nan", "no_nan", (SPECIAL, "return sign * math.inf"))
answers.edit(
    "normal_numbers", "out_of_1023", (NORMAL, NORMAL.replace("mantissa", "mantissa * 1024 / 1023"))
)
answers.edit("sign", "all_positive", (SIGN, "sign = 1.0"))
answers.edit("subnormal_numbers", "flushed_to_zero", (SUBNORMAL, "return sign * 0.0"))
answers.edit("zeros", "unsigned_zero", ("if exponent == 31:", ZERO), says="expected -0.0")
answers.edit(
    "sign",
    "one_infinity",
    (SPECIAL, SPECIAL.replace("sign * ", "")),
    says="expected -inf",
)
answers.edit("infinities_and_nan", "nan_at_zero_mantissa", (SPECIAL, "return math.nan"))
answers.edit("returns_none", "no_return", (NORMAL, NORMAL.replace("return ", "")))
answers.right_edit(
    "as_in_the_table", (NORMAL, "return sign * 2.0 ** (exponent - 15) * (1 + mantissa / 1024)")
)
answers.edit("wrong_type", "as_text", (SUBNORMAL, "return str(mantissa)"))


@answers.wrong("converted_by_library")
def numpy_does_it(bits):
    return float(np.uint16(bits).view(np.float16))


@answers.wrong("converted_by_library")
def imported_inside(bits):
    import struct

    return struct.unpack("<e", struct.pack("<H", bits))[0]


@answers.right
def from_binary_text(bits):
    text = f"{bits:016b}"
    sign = -1 if text[0] == "1" else 1
    exponent, mantissa = int(text[1:6], 2), int(text[6:], 2)
    match exponent, mantissa:
        case 31, 0:
            return sign * math.inf
        case 31, _:
            return math.nan
        case 0, m:
            return math.copysign(m / 2**24, sign)
    return sign * (1 + mantissa / 1024) * 2.0 ** (exponent - 15)


@answers.right
def by_fractions(bits):
    exponent, mantissa = divmod(bits & 0x7FFF, 1024)
    if exponent == 31:
        size = math.nan if mantissa else math.inf
    else:
        part = Fraction(mantissa + 1024 * bool(exponent), 1024)
        size = float(part * Fraction(2) ** (max(exponent, 1) - 15))
    return -size if bits & 0x8000 else size


@answers.right
def integers_where_whole(bits):
    number = REFERENCE(bits)
    return int(number) if math.isfinite(number) and number % 1 == 0 and number else number


@answers.right
def negative_nans(bits):
    number = REFERENCE(bits & 0x7FFF)
    return -number if bits & 0x8000 else number
