"""Numbers with units."""

import pytest

from parlab.units import counted, sized, timed


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 bytes"), (1, "1 bytes"), (1500, "1.5 kB"), (999_600, "1 MB")),
        *((2.6e9, "2.6 GB"), (1.5e13, "15 TB")),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert sized(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3e-9, "3 ns"), (1.25e-5, "12.5 µs"), (0.104, "104 ms"), (90, "90 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert timed(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(12, "12"), (269_322, "269,322"), (1.3e9, "1.3 billion"), (7e12, "7 trillion")],
)
def test_counts(number: float, text: str) -> None:
    assert counted(number) == text
