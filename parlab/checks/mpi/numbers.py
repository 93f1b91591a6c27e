"""What the exercises of lab 01 are tried with, and that what they give lies in there."""

from random import Random
from typing import Any

import numpy as np

from parlab.checks.mistakes import COMMON, Finding


def random_numbers(
    draw: Random, count: int, shape: int | tuple[int, ...], dtype: Any
) -> list[np.ndarray]:
    """`count` arrays of whole numbers of this shape, one for each rank, the same on all ranks.

    Whole numbers below 2¹⁸ are summed exactly in float32, in any order, for up to 32 ranks: what
    differs is wrong, and not rounding.
    """
    generator = np.random.default_rng(draw.getrandbits(32))
    return [generator.integers(1, 2**18, shape).astype(dtype) for _ in range(count)]


def nothing_returned(got: object, instead: str = "the numbers in `x`") -> Finding | None:
    """`x` itself is the result; that it is returned as well does no harm."""
    if got is None or isinstance(got, np.ndarray):
        return None
    return COMMON.returns_something(got=repr(got), instead=instead)
