"""One rank cell: sent, watched until it ends or has to be ended, its ranks freed."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from parlab.cluster.locations import in_torch, where
from parlab.cluster.replies import Replies
from parlab.cluster.session import Session

# A rank that raised may have left others waiting for it: they get this long to end by themselves.
GRACE_SECONDS = 1.0
# Each way of freeing a rank gets this long before the next.
STEP_SECONDS = 0.35
# A revocation is asked for more than once: a call that waits in MPI may miss one.
TIMES = 3
RECOVERY_SECONDS = 10.0


class Ending(Enum):
    """Why the kernel stopped waiting for a cell."""

    FINISHED = "finished"
    FAILED = "a rank failed and left others waiting"
    DEADLINE = "the deadline passed"
    DIED = "a rank died"
    INTERRUPTED = "the user stopped the cell"


@dataclass
class Outcome:
    """How a rank cell ended."""

    ending: Ending
    # Ranks that were still running when the kernel stopped waiting, and the line each was at.
    stuck: dict[int, str] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    freed: bool = True  # False: the ranks must be replaced
    lost: list[str] = field(default_factory=list)  # variables whose communicator ended
    torch_is_new: bool = False


class Cell:
    """The run of `code` on ranks `targets` of `session`, at most `timeout` seconds."""

    def __init__(self, session: Session, code: str, targets: list[int], timeout: float) -> None:
        self.session = session
        self.targets = targets
        session.cells.add(code)
        session.names.add(code)
        self.news = threading.Event()
        session.events.add(self.news)
        self.deadline = time.monotonic() + timeout
        self.result = session.client[targets].execute(code, silent=False, block=False)
        self.replies = Replies(targets, self.result)
        self.replies.on_each(self.news.set)
        self.released = False

    def run(self, on_second: Callable[[Replies], None] = lambda replies: None) -> Outcome:
        """Wait for the cell, whatever happens to it; call `on_second` about once a second."""
        try:
            ending = self._wait(on_second)
        except KeyboardInterrupt:
            ending = Ending.INTERRUPTED
        with _deaf_to_interrupts():
            return self._finish(ending)

    # Waiting

    def _wait(self, on_second: Callable[[Replies], None]) -> Ending:
        grace_ends = None
        while self.replies.running():
            now = time.monotonic()
            if self.session.channel.deaths():
                return Ending.DIED
            if now >= self.deadline:
                return Ending.DEADLINE
            if grace_ends is None and self.replies.errors():
                grace_ends = now + GRACE_SECONDS
            if grace_ends is not None and now >= grace_ends:
                return Ending.FAILED
            if not self.news.wait(min(grace_ends or self.deadline, self.deadline, now + 1.0) - now):
                on_second(self.replies)
            self.news.clear()
        return Ending.FINISHED

    def _wait_until_free(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.replies.running() and (left := until - time.monotonic()) > 0:
            self.news.wait(left)
            self.news.clear()
        return not self.replies.running()

    # Ending

    def _finish(self, ending: Ending) -> Outcome:
        outcome = Outcome(ending)
        if ending is Ending.DIED:
            self._look(outcome)
            outcome.deaths = self.session.channel.deaths()
            outcome.freed = False
        elif ending is not Ending.FINISHED:
            stacks = self._look(outcome)
            if ending is not Ending.FAILED:  # there, ranks that compute may go on
                self.replies.ended_early()
            free = self._leave(stacks) if ending is Ending.FAILED else self._free(stacks)
            outcome.freed = free and self._recover(outcome)
        return outcome

    def _look(self, outcome: Outcome) -> dict[int, str]:
        running = self.replies.running()
        stacks = self.session.channel.stacks(running)
        for rank in running:
            place = where(stacks.get(rank, ""), self.session.cells)
            outcome.stuck[rank] = place or (
                "between two lines" if stacks.get(rank) else "gives no sign (stuck in C code)"
            )
        return stacks

    def _send(self, ranks: list[int], **request: object) -> None:
        self.released = True
        self.session.channel.send(ranks, **request)

    def _release(self, stacks: dict[int, str]) -> bool:
        """Make calls that wait for other ranks fail; says whether all ranks are free then."""
        if any(in_torch(stack) for stack in stacks.values()):
            self._ask_all("t")
        for _ in range(TIMES):
            self._ask_all("r")
            if self._wait_until_free(STEP_SECONDS / TIMES):
                return True
        return False

    def _ask_all(self, what: str) -> None:
        self._send(list(range(self.session.n)), do="release", what=what)

    def _free(self, stacks: dict[int, str]) -> bool:
        """End the cell on every rank, keeping what the ranks hold; says whether all are free."""
        if self._release(stacks):
            return True
        for step in range(3):
            self._send(self.replies.running(), do="signal", signal=int(signal.SIGINT))
            self._ask_all("r")
            if step == 1:
                self._ask_all("t")
            if self._wait_until_free(STEP_SECONDS):
                return True
        return False

    def _leave(self, stacks: dict[int, str]) -> bool:
        """A rank failed. Free those that wait for it, and let those that compute go on."""
        if self._release(stacks):
            return True
        with contextlib.suppress(KeyboardInterrupt):
            while self.replies.running() and time.monotonic() < self.deadline:
                if self.session.channel.deaths():
                    return False
                self.news.wait(self.deadline - time.monotonic())
                self.news.clear()
        return not self.replies.running() or self._free(stacks)

    def _recover(self, outcome: Outcome) -> bool:
        recovered = self.session.recover(RECOVERY_SECONDS)
        if recovered is None:
            return False
        lost = set(recovered["lost"])
        outcome.lost = sorted(lost - self.session.lost)  # told once
        self.session.lost = lost
        outcome.torch_is_new = bool(recovered["torch"])
        return True


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A second press of the stop button must not leave ranks half freed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
