"""Compares what a hidden check displayed with what it displayed for the reference."""

import math
from typing import Any

RELATIVE, ABSOLUTE = 1e-5, 1e-8
MISSING = object()  # equal to nothing that JSON knows


def share_right(expected: Any, got: Any) -> tuple[int, int]:
    """How many of the values are right, and how many there are.

    Values are the leaves of what JSON knows. One that is missing counts as wrong, and so does one
    too many in a list. Numbers may differ by rounding; a text that is a decimal number may differ
    by one in its last place. NaN is right nowhere.
    """
    if isinstance(expected, dict):
        found = got if isinstance(got, dict) else {}
        return _sum(share_right(expected[key], found.get(key, MISSING)) for key in expected)
    if isinstance(expected, list):
        found = got if isinstance(got, list) else []
        pairs = zip(expected, found + [MISSING] * len(expected), strict=False)
        right, total = _sum(share_right(one, other) for one, other in pairs)
        return right, total + max(0, len(found) - len(expected))
    return int(_equal(expected, got)), 1


def _sum(pairs: Any) -> tuple[int, int]:
    right = total = 0
    for one_right, one_total in pairs:
        right += one_right
        total += one_total
    return right, total


def _equal(expected: Any, got: Any) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool) or expected is None:
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return _close(expected, got)
    if isinstance(expected, str) and isinstance(got, str):
        return expected == got or _same_decimal(expected, got)
    return False


def _close(expected: float, got: float) -> bool:
    try:
        return math.isclose(expected, got, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    except OverflowError:  # an int beyond all floats
        return expected == got


def _same_decimal(expected: str, got: str) -> bool:
    _, point, places = expected.partition(".")
    if not point or not places.isdigit() or len(got) > len(expected) + 2:
        return False
    try:
        difference = abs(float(expected) - float(got))
    except ValueError:
        return False
    return difference <= 1.01 * 10.0 ** -len(places)
