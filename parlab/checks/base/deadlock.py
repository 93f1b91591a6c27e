"""Whether ranks wait for each other, and none of them will ever go on.

A deadline cannot tell a rank that is slow from one that waits for ever, and on a busy machine it
has to be long. But where each rank has either ended or waits in a call of MPI, nobody is left to
send what they wait for. So each rank's watchdog lays out, in memory that all share, since when its
rank waits; and whoever sees that all do knows that they are stuck. Ranks of several machines share
no memory: there a deadline is all there is.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from mpi4py import MPI

from parlab.checks.base.collective import gather, private_communicator
from parlab.runtime.shared_memory import SharedNumbers

# A message between ranks that both wait in MPI takes microseconds, and a turn of the processor on
# both sides; a collective takes a turn a round. On a busy machine a rank may wait long for its
# turn: so many it must have had. Who waits for a message gives its turn away as soon as it has
# looked for one; who is alone on its processor keeps it: so much of that counts as a turn as well.
WAITS_SECONDS = 1.0
WAITS_TURNS = 100
TURN_SECONDS = 2.5e-3

_PARLAB = Path(__file__).resolve().parents[2]
# Where these call MPI a rank can be waiting, and they do little else.
_CALLERS = tuple(
    f"{_PARLAB}/{name}" for name in ("ledger/", "runtime/torch_mpi/", "rank/requests.py")
)

# What is laid out of each rank: the call it is in, since when it waits there, the turns of the
# processor that it has had, and the latest call that it saw at a standstill.
_NUMBER, _SINCE, _TURNS, _STUCK = range(4)
_FIELDS_PER_RANK = 4
_ENDED = 0.0  # for `since`: a rank that has ended waits for nobody
_AT_WORK = float("inf")


class Board:
    """What the ranks of the lab lay out for each other; making it is collective over `comm`."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Raises ValueError where ranks share no memory."""
        self._shared = SharedNumbers(
            comm, comm.size * _FIELDS_PER_RANK
        )  # closes its file in the end
        self.numbers = self._shared.numbers
        self.rank = comm.rank

    def at(self, rank: int, what: int) -> float:
        return self.numbers[rank * _FIELDS_PER_RANK + what]

    def own(self, what: int) -> float:
        return self.at(self.rank, what)

    def publish(self, what: int, value: float) -> None:
        self.numbers[self.rank * _FIELDS_PER_RANK + what] = value


_board: Board | None = None
_calls = 0  # so far


def next_call() -> tuple[Board | None, int]:
    """The lab's board, None where its ranks share no memory; and the call's number. Collective.

    By the time it returns, all ranks are through with what they did before.
    """
    global _board, _calls
    if _calls == 0:
        with contextlib.suppress(ValueError):
            _board = Board(private_communicator())
    _calls = max(gather(_calls)) + 1  # a rank may have been interrupted before this
    return _board, _calls


class Standstill:
    """One call of a function on some of the lab's ranks, which may come to a standstill.

    Args:
        number: of the call, greater than that of any before, and the same on all ranks.
        ranks: their numbers in the lab.
        messages: how many messages and collectives this rank has started so far.
    """

    def __init__(
        self, board: Board, number: int, ranks: Sequence[int], messages: Callable[[], int]
    ) -> None:
        self._board, self._number, self._ranks, self._messages = board, number, ranks, messages
        self._place: tuple[int, int, int] | None = None  # where this rank was at the last look
        self._waits: list[float] = []  # since when each rank waits, where all do
        self._seen, self._had = 0.0, [0.0]  # when this was seen first, and turns until then
        self._threads = threading.active_count() + 1  # with the one that looks
        board.publish(_SINCE, _AT_WORK)
        board.publish(_NUMBER, number)

    def look(self, thread: int) -> bool:
        """Lay out whether `thread` waits, as seen now; whether all ranks are stuck."""
        frame = sys._current_frames().get(thread)
        # A thread that the function started may still send.
        waits = _calls_mpi(frame) and threading.active_count() <= self._threads
        place = (id(frame), frame.f_lasti, self._messages()) if frame and waits else None
        del frame  # before files are read: what it holds, and checks may follow, lives as long
        if place is None or place != self._place:
            self._board.publish(_SINCE, _AT_WORK)
        elif self._board.own(_SINCE) == _AT_WORK:
            self._board.publish(_SINCE, time.monotonic())
        self._place = place
        self._board.publish(_TURNS, _turns(thread))
        if self._none_goes_on():
            self._board.publish(_STUCK, self._number)
        return self.stuck

    def _none_goes_on(self) -> bool:
        """Whether all wait, for long, and had their turns."""
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

    def ended(self) -> None:
        """This rank's call is over."""
        self._board.publish(_SINCE, _ENDED)

    @property
    def stuck(self) -> bool:
        """Whether some rank has seen that all are."""
        return self._number in self._all(_STUCK)


def _turns(thread: int) -> float:
    """How many turns of the processor a thread of this process has had."""
    seconds = time.clock_gettime(time.pthread_getcpuclockid(thread))
    return seconds / TURN_SECONDS + _switches(thread)


def _switches(thread: int) -> int:
    """How often it had to leave the processor though it could go on; 0 where nobody counts that.

    Such as whoever looks for a message in vain, and yields. One that sleeps leaves of its own will.
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


def _calls_mpi(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_CALLERS)
