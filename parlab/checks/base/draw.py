"""Draws the inputs of a check: shapes, and seeds of the values in them."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

_OTHER_BITS = 0x5A5A5A5A
_OTHER_FRACTION = 0.382


class Draw(Random):
    """A random generator that can draw the same shapes once more, with other values.

    Shapes come from `randrange`, `choice`, `sample`, and the like, and values from `random`,
    `uniform`, and from seeds: `getrandbits(32)`.
    """

    _other = False

    @contextmanager
    def other_values(self, state: tuple) -> Iterator[None]:
        """Draw in this context as from `state`, but other values in the same shapes."""
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
        """Return what `Random` returns, whatever `getrandbits` does here."""
        k = n.bit_length()
        drawn = super().getrandbits(k)
        while drawn >= n:
            drawn = super().getrandbits(k)
        return drawn
