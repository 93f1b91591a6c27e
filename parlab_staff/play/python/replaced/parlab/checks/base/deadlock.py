"""Deadlocks in a page: the hub finds them, and ends the waiting calls."""

from collections.abc import Callable, Sequence

import _hub

from parlab.checks.base.collective import gather

_calls = 0


def next_call() -> tuple[bool, int]:
    """Return True, and the call's number. Collective."""
    global _calls
    gather(None)
    _hub.next_case()
    _calls += 1
    return True, _calls


class Standstill:
    """One call of a function on some of the ranks."""

    stuck = False

    def __init__(
        self, board: bool, number: int, ranks: Sequence[int], messages: Callable[[], int]
    ) -> None:
        pass

    def others_wait(self, seconds: float) -> bool:
        """Return True if each other rank is waiting for a message, or has ended."""
        return _hub.others_wait()
