"""Draws the inputs of a check: shapes, and the seeds of their values."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

_OTHER_BITS = 0x5A5A5A5A
_OTHER_FRACTION = 0.382


class Draw(Random):
    """A random generator that can draw the same shapes again, with other values.

    Shapes come from `randrange`, `choice`, `sample`, and similar methods. Values come from
    `random`, `uniform`, and seeds (`getrandbits(32)`).
    """

    _other = False

    @contextmanager
    def other_values(self, state: tuple) -> Iterator[None]:
        """In this context, draw the same shapes as after `state`, but other values."""
        self.setstate(state)
        self._other = True
        try:
            yield
        finally:
            self._other = False

    def getrandbits(self, k: int) -> int:
        bits = super().getrandbits(k)
        return bits ^ (_OTHER_BITS & ((1 << k) - 1)) if self._other else bits

    def random(self) -> float:
        value = super().random()
        return (value + _OTHER_FRACTION) % 1.0 if self._other else value

    def _randbelow(self, n: int) -> int:
        """Return the same number as `Random`, which does not depend on `_other`."""
        k = n.bit_length()
        drawn = super().getrandbits(k)
        while drawn >= n:
            drawn = super().getrandbits(k)
        return drawn
