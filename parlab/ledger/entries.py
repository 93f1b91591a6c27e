"""The list of calls in a ledger, some of which may not be complete yet."""

from collections.abc import Callable

from parlab.ledger.calls import Call


class Entries:
    """Calls in the order in which they were made."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._incomplete: list[Callable[[], bool]] = []

    def enter(self, call: Call) -> None:
        """Add a call."""
        self._calls.append(call)

    def follow(self, settled: Callable[[], bool]) -> None:
        """Add a call that is not complete yet.

        If the call has ended, `settled` records the end and returns True.
        """
        self._incomplete.append(settled)

    def settle(self) -> None:
        """Record the end of calls that completed without being noticed, as in `Waitall`."""
        if self._incomplete:
            self._incomplete = [settled for settled in self._incomplete if not settled()]

    @property
    def made(self) -> int:
        """Number of calls so far. Other threads may read it."""
        return len(self._calls)

    @property
    def calls(self) -> list[Call]:
        """All calls so far, in the order in which they were made."""
        self.settle()
        return list(self._calls)

    def clear(self) -> None:
        """Forget the calls so far."""
        self._calls.clear()
        self._incomplete.clear()
