"""Detects deadlocks, in which ranks wait for each other and none of them will ever continue.

A deadline cannot distinguish a slow rank from one that waits forever, and on a busy machine it must
be long. But if each rank has either ended its call or waits in MPI, no rank is left to send the
messages that the others wait for. Each rank's watchdog therefore publishes, in shared memory, when
its rank began to wait. A watchdog that sees all ranks wait knows that they are stuck. Ranks on
different machines share no memory, so only the deadline ends their deadlocks.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpi4py import MPI

from parlab.checks.base.call_stack import CodeLine, calls_of
from parlab.checks.base.collective import gather, private_communicator
from parlab.runtime.shared_memory import SharedNumbers

# Ranks count as stuck after they have waited this long and have each had this many turns on a CPU.
# A message between two waiting ranks takes microseconds and one turn on each side, and a collective
# takes one turn in each round. But on a busy machine, a rank may wait long for its next turn. A
# waiting rank yields the CPU after each look for messages, which ends its turn. If no other process
# wants that CPU, the rank keeps it, so this much CPU time counts as a turn, too.
WAITS_SECONDS = 1.0
WAITS_TURNS = 100
TURN_SECONDS = 2.5e-3

_PARLAB = Path(__file__).resolve().parents[2]
# A rank that runs code in these folders is probably waiting in MPI, because they do little else.
_CALLERS = tuple(
    f"{_PARLAB}/{name}" for name in ("ledger/", "runtime/torch_mpi/", "rank/requests.py")
)

# Each rank publishes the number of its call, when it began to wait there, how many turns on a CPU
# it has had, the number of the latest call that it found stuck, and how often it has looked.
_NUMBER, _SINCE, _TURNS, _STUCK, _LOOKS = range(5)
_FIELDS_PER_RANK = 5
_ENDED = 0.0  # the value of `_SINCE` for a rank whose call has ended
_AT_WORK = float("inf")


class Board:
    """Numbers that the lab's ranks publish in shared memory. Creating it is collective."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Raise ValueError if the ranks of `comm` share no memory."""
        # Keep the object: it closes its file when it is deleted.
        self._shared = SharedNumbers(comm, comm.size * _FIELDS_PER_RANK)
        self.numbers = self._shared.numbers
        self.rank = comm.rank

    def at(self, rank: int, what: int) -> float:
        return self.numbers[rank * _FIELDS_PER_RANK + what]

    def own(self, what: int) -> float:
        return self.at(self.rank, what)

    def publish(self, what: int, value: float) -> None:
        self.numbers[self.rank * _FIELDS_PER_RANK + what] = value


# By number of ranks: for all ranks of the lab, and for a check that runs on one rank.
_boards: dict[int, Board | None] = {}
_calls: dict[int, int] = {}  # the number of calls so far


def next_call() -> tuple[Board | None, int]:
    """Return the ranks' board, or None if they share no memory; and the call's number.

    Collective: when it returns, all ranks have finished what they did before.
    """
    comm = private_communicator()
    n = comm.size
    if n not in _boards:
        try:
            _boards[n] = Board(comm)
        except ValueError:
            _boards[n] = None
    # A rank may have been interrupted before it counted the last call.
    _calls[n] = max(gather(_calls.get(n, 0))) + 1
    return _boards[n], _calls[n]


class Standstill:
    """One call of a function on some of the lab's ranks, which may deadlock.

    Args:
        number: the call's number: the same on all ranks, and greater than in earlier calls.
        ranks: the ranks that take part, by their numbers in the lab.
        messages: returns how many messages and collectives this rank has started so far.
    """

    def __init__(
        self, board: Board, number: int, ranks: Sequence[int], messages: Callable[[], int]
    ) -> None:
        self._board, self._number, self._ranks, self._messages = board, number, ranks, messages
        self._place: tuple[CodeLine | None, int] | None = None  # where it was at the last look
        self._waits: list[float] = []  # when each rank's wait began; empty unless all wait
        self._seen, self._had = 0.0, [0.0]  # when `_waits` was first seen, and the turns until then
        self._threads = threading.active_count() + 1  # including the watchdog
        board.publish(_SINCE, _AT_WORK)
        board.publish(_LOOKS, 0)
        board.publish(_NUMBER, number)

    def look(self, thread: int) -> bool:
        """Publish whether `thread` is waiting. Return whether all ranks are stuck."""
        innermost = next(iter(calls_of(thread)), None)
        # A thread that the function started may still send.
        waits = _calls_mpi(innermost) and threading.active_count() <= self._threads
        place = (innermost, self._messages()) if waits else None
        if place is None or place != self._place:
            self._board.publish(_SINCE, _AT_WORK)
        elif self._board.own(_SINCE) == _AT_WORK:
            self._board.publish(_SINCE, time.monotonic())
        self._place = place
        self._board.publish(_TURNS, _turns(thread))
        self._board.publish(_LOOKS, self._board.own(_LOOKS) + 1)
        if self._all_have_waited():
            self._board.publish(_STUCK, self._number)
        return self.stuck

    def _all_have_waited(self) -> bool:
        """Return whether all ranks have waited long enough, with enough turns on a CPU."""
        waits = self._all(_SINCE)
        if self._all(_NUMBER) != [self._number] * len(waits) or _AT_WORK in waits:
            self._waits = []
            return False
        had = self._all(_TURNS)
        if waits != self._waits:
            self._waits, self._seen, self._had = waits, time.monotonic(), had
        turns = [now - before for now, before in zip(had, self._had, strict=True)]
        return time.monotonic() - self._seen > WAITS_SECONDS and all(
            count > WAITS_TURNS or since == _ENDED
            for count, since in zip(turns, waits, strict=True)
        )

    def _all(self, what: int) -> list[float]:
        return [self._board.at(rank, what) for rank in self._ranks]

    def fewest_looks(self) -> float:
        """Return the smallest number of looks of any rank whose call has not ended.

        A rank that a busy machine does not run cannot look, and cannot continue either.
        """
        begun = [n == self._number for n in self._all(_NUMBER)]
        looks, waits = self._all(_LOOKS), self._all(_SINCE)
        running = [
            looked if has_begun else 0.0
            for looked, has_begun, since in zip(looks, begun, waits, strict=True)
            if not has_begun or since != _ENDED
        ]
        return min(running, default=math.inf)

    def others_wait(self, seconds: float) -> bool:
        """Return whether each other rank has waited in MPI for `seconds`, or has ended its call."""
        own, before = self._board.rank, time.monotonic() - seconds
        return all(
            self._board.at(rank, _NUMBER) == self._number and self._board.at(rank, _SINCE) < before
            for rank in self._ranks
            if rank != own
        )

    def ended(self) -> None:
        """Publish that this rank's call has ended."""
        self._board.publish(_SINCE, _ENDED)

    @property
    def stuck(self) -> bool:
        """Return True if any rank found that all ranks are stuck."""
        return self._number in self._all(_STUCK)


def _turns(thread: int) -> float:
    """Return how many turns on a CPU a thread of this process has had."""
    seconds = time.clock_gettime(time.pthread_getcpuclockid(thread))
    return seconds / TURN_SECONDS + _switches(thread)


def _switches(thread: int) -> int:
    """Return the number of involuntary context switches of a thread; 0 if the system has no count.

    Linux counts a switch when a thread finds no message and yields, but not when it sleeps.
    """
    number = next((t.native_id for t in threading.enumerate() if t.ident == thread), None)
    with contextlib.suppress(OSError):
        status = (
            Path(f"/proc/self/task/{number}/status")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
        return sum(int(line.split()[1]) for line in status if line.startswith("nonvoluntary"))
    return 0


def _calls_mpi(innermost: CodeLine | None) -> bool:
    return innermost is not None and innermost.file.startswith(_CALLERS)
