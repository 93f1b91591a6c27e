"""Advances a rank's operations in the background."""

import collections
import threading

from parlab.network.clock import LATE, now, sleep_until
from parlab.network.rendezvous import Meetings
from parlab.network.work import MAX_SLEEP, CollectiveWork, EmulatedWork


class Collectives:
    """The collectives of a group that this rank has called, in order."""

    def __init__(self, meetings: Meetings) -> None:
        self._meetings = meetings
        self._pending: collections.deque[tuple[int, CollectiveWork]] = collections.deque()
        self._next = 0
        self._order, self._exchange = threading.Lock(), threading.Lock()

    def join(self, work: CollectiveWork, called: float, seconds: float) -> None:
        """Add the next collective, which this rank called at `called` (s).

        It takes `seconds` after all ranks have called it.
        """
        with self._order:
            number, self._next = self._next, self._next + 1
            self._pending.append((number, work))
            self._meetings.join(number, called, seconds)

    def advance(self) -> None:
        """Run the exchanges of the collectives that all ranks have called."""
        with self._exchange:
            while self._pending:
                number, work = self._pending[0]
                end = self._meetings.end(number)
                if not end:
                    return
                self._meetings.leave(number)
                self._pending.popleft()
                work.run_exchange(end)

    def give_up(self) -> None:
        """Make all incomplete collectives fail, after their communicator was revoked."""
        with self._exchange:
            while self._pending:
                self._pending.popleft()[1].give_up()


class Background:
    """A thread that advances operations and completes their futures. It sleeps between polls."""

    def __init__(self) -> None:
        self._works: list[EmulatedWork] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def look_after(self, work: EmulatedWork) -> None:
        """Advance `work` until it is over, and then complete its future."""
        with self._changed:
            if work in self._works:
                return
            self._works.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="parlab-network")
                self._thread.daemon = True
                self._thread.start()
            self._changed.notify()

    def works(self) -> list[EmulatedWork]:
        """Return the operations that the thread currently advances."""
        with self._changed:
            return list(self._works)

    def forget(self) -> None:
        """Stop advancing all operations."""
        with self._changed:
            self._works.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._works:
                    self._changed.wait()
                works = list(self._works)
            for work in works:
                work.advance()
                if work.revoked():
                    work.give_up()
            over = [work for work in works if work.is_over()]
            with self._changed:
                # Remove them before completing them, so that a later `get_future` adds them again.
                self._works = [work for work in self._works if work not in over]
            for work in over:
                work.complete()
            with self._changed:
                if len(self._works) != len(works) - len(over) or not self._works:
                    continue
                due = min(map(_due, self._works))
                if (early := due - LATE - now()) > 0:
                    self._changed.wait(early)
                    continue
            sleep_until(due)


def _due(work: EmulatedWork) -> float:
    """Return the time at which `work` must be advanced or checked for a revocation (s)."""
    if work.exchanged():
        return min(work.end, now() + MAX_SLEEP)
    return now() + work.poll_seconds
