"""Compares what a hidden check displayed with what it displayed for the reference."""

import math
from typing import Any

RELATIVE, ABSOLUTE = 1e-5, 1e-8
MISSING = object()  # differs from every value of JSON

Place = tuple[str | int, ...]
NOWHERE: frozenset[Place] = frozenset()


def share_right(expected: Any, got: Any, free: frozenset[Place] = NOWHERE) -> tuple[int, int]:
    """Return how many values are right, and how many there are, ignoring those at `free`.

    Values are the leaves of a JSON value. A missing value counts as wrong, and so does an extra one
    in a list. Numbers may differ by rounding; a text that is a decimal number may differ by one in
    its last place. NaN is never right.
    """
    counted = [right for place, right in right_at(expected, got).items() if place not in free]
    return sum(counted), len(counted)


def right_at(expected: Any, got: Any, place: Place = ()) -> dict[Place, bool]:
    """Return True or False for each value, by its place: the keys and indices that lead to it."""
    if isinstance(expected, dict):
        found = got if isinstance(got, dict) else {}
        pairs = [(key, expected[key], found.get(key, MISSING)) for key in expected]
    elif isinstance(expected, list):
        found = got if isinstance(got, list) else []
        length = max(len(expected), len(found))
        wanted = expected + [MISSING] * (length - len(expected))
        found = found + [MISSING] * (length - len(found))
        pairs = list(zip(range(length), wanted, found, strict=True))
    else:
        return {place: expected is not MISSING and _equal(expected, got)}
    return {
        inner: right
        for key, one, other in pairs
        for inner, right in right_at(one, other, (*place, key)).items()
    }


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
    except OverflowError:  # an int that is too large for a float
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
