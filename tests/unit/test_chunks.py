"""Chunks against numpy.array_split."""

import numpy as np
import pytest

from parlab.chunks import chunk


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 12, 101])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_chunks_are_those_of_array_split(length: int, parts: int) -> None:
    x = np.arange(length)
    for index, expected in enumerate(np.array_split(x, parts)):
        np.testing.assert_array_equal(x[chunk(length, index, parts)], expected)
        assert chunk(length, index - parts, parts) == chunk(length, index, parts)
        assert chunk(length, index + 2 * parts, parts) == chunk(length, index, parts)


def test_zero_parts_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 chunk or more, not 0"):
        chunk(5, 0, 0)
