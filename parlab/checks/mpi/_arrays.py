"""Arrays for the exercises of lab 01, and the requirement that they contain the result."""

from random import Random
from typing import Any

import numpy as np

from parlab.checks.base.mistakes import COMMON, Finding

# Digits of the last number. The sum over up to 32 ranks is exact in any order.
_BITS = {"int16": 10, "int32": 26, "int64": 58, "float32": 18, "float64": 46, "complex128": 46}


def random_numbers(
    draw: Random, count: int, shape: int | tuple[int, ...], dtype: Any
) -> list[np.ndarray]:
    """Draw `count` arrays, the same on all ranks.

    Their numbers are small, except for the last one, which needs all digits of the dtype. Floats
    have fractions. All sums are exact, so any difference is a mistake, not rounding.
    """
    generator = np.random.default_rng(draw.getrandbits(32))
    bits = _BITS[np.dtype(dtype).name]
    arrays = []
    for _ in range(count):
        numbers = np.array(generator.integers(1, 1000, shape))
        numbers.flat[-1:] = generator.integers(2 ** (bits - 1), 2**bits)
        factor, offset = {"i": (1, 0), "f": (1, 0.5), "c": (1 + 2j, 0.5)}[np.dtype(dtype).kind]
        arrays.append(np.array(factor * (numbers + offset), dtype))
    return arrays


def nothing_returned(got: object, instead: str = "the numbers in `x`") -> Finding | None:
    """Require that the function returns nothing or an array, because it may return `x`."""
    if got is None or isinstance(got, np.ndarray):
        return None
    return COMMON.returns_something(got=repr(got), instead=instead)
