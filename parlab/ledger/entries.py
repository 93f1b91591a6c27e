"""The list that a ledger is: calls in order, some of them still under way."""

from collections.abc import Callable

from parlab.ledger.calls import Call


class Entries:
    """Calls in the order in which they were made."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._under_way: list[Callable[[], bool]] = []

    def enter(self, call: Call) -> None:
        """Add a call."""
        self._calls.append(call)

    def follow(self, settled: Callable[[], bool]) -> None:
        """Add a call under way: `settled` notes its end where there is one, and says whether."""
        self._under_way.append(settled)

    def settle(self) -> None:
        """Note the end of calls that completed where nobody saw it, as in `Request.Waitall`."""
        if self._under_way:
            self._under_way = [settled for settled in self._under_way if not settled()]

    @property
    def made(self) -> int:
        """Number of calls so far; other threads may ask."""
        return len(self._calls)

    @property
    def calls(self) -> list[Call]:
        """All calls so far, in the order in which they were made."""
        self.settle()
        return list(self._calls)

    def clear(self) -> None:
        """Forget the calls so far."""
        self._calls.clear()
        self._under_way.clear()
