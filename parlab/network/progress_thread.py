"""Carries on with a rank's operations beside what the rank computes."""

import collections
import threading

from parlab.network.clock import LATE, now, sleep_until
from parlab.network.rendezvous import Meetings
from parlab.network.work import NAP, CollectiveWork, EmulatedWork


class Collectives:
    """The collectives of a group that this rank has come to, in order."""

    def __init__(self, meetings: Meetings) -> None:
        self._meetings = meetings
        self._pending: collections.deque[tuple[int, CollectiveWork]] = collections.deque()
        self._next = 0
        self._order, self._exchange = threading.Lock(), threading.Lock()

    def come(self, work: CollectiveWork, called: float, seconds: float) -> None:
        """This rank called its next collective at `called`; it takes `seconds` once all have."""
        with self._order:
            number, self._next = self._next, self._next + 1
            self._pending.append((number, work))
            self._meetings.come(number, called, seconds)

    def advance(self) -> None:
        """Carry out the exchanges of those to which all ranks have come."""
        with self._exchange:
            while self._pending:
                number, work = self._pending[0]
                end = self._meetings.end(number)
                if not end:
                    return
                self._meetings.leave(number)
                self._pending.popleft()
                work.carry_out(end)

    def give_up(self) -> None:
        """Fail all that are under way, once their communicator was revoked."""
        with self._exchange:
            while self._pending:
                self._pending.popleft()[1].give_up()


class Background:
    """A thread that advances operations and completes their futures; it sleeps in between."""

    def __init__(self) -> None:
        self._works: list[EmulatedWork] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def look_after(self, work: EmulatedWork) -> None:
        """Advance `work` until it is over, and complete its future then."""
        with self._changed:
            if work in self._works:
                return
            self._works.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="parlab-network")
                self._thread.daemon = True
                self._thread.start()
            self._changed.notify()

    def under_way(self) -> list[EmulatedWork]:
        """What it looks after now."""
        with self._changed:
            return list(self._works)

    def forget(self) -> None:
        """Look after nothing any more."""
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
            over = [work for work in works if work.over()]
            with self._changed:
                # First: a future that is asked for from now on is looked after anew.
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
    """Until when nothing is to be done for it, but to hear that the ranks are to be freed."""
    if work.exchanged():
        return min(work.end, now() + NAP)
    return now() + work.poll_seconds
