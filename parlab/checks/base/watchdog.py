"""Runs a learner's function so that neither an exception nor a deadlock stops the check.

A rank that is blocked in MPI cannot react, but it has released Python's lock. A thread of the same
process finds the line where it waits, and frees it by revoking the communicator, which is part of
MPI's fault tolerance. It does so at once if no rank can continue (see `deadlock.Standstill`), and
otherwise at a deadline. If this MPI cannot revoke, only the deadline of the cell frees the rank.
"""

import contextlib
import linecache
import re
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from mpi4py import MPI

from parlab.checks.base.call_stack import CodeLine, calls_of
from parlab.checks.base.deadlock import Standstill
from parlab.checks.base.refused_calls import refusal

STEP_SECONDS = 0.1  # between two searches for a deadlock
LOOK_SECONDS = 0.25  # between the last look and revoking, so that all ranks look first
PATIENCE = 3  # the factor for the time limit of a call that still sends messages, or cannot run
LEAST_LOOKS = 0.2  # the smallest share of its looks that a rank takes if the machine lets it run

_LIBRARIES = (
    str(Path(__file__).resolve().parents[2]),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
)


@dataclass(frozen=True)
class Ended:
    """How a call ended on one rank.

    Attributes:
        kind: `unfinished` if a stub was called. `stuck` if the call waited in the communicator
            until that was revoked.
        line: the innermost line of the learner's code: where the error was raised, or where the
            watchdog last found the call. "" if the call returned before the watchdog looked.
    """

    kind: Literal["returned", "raised", "unfinished", "stuck"]
    value: Any = None
    error: str = ""
    line: str = ""


class _Watch:
    """Looks at the calling thread until its call ends, and revokes `comm` if the call is stuck."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        seconds: float,
        messages: Callable[[], int],
        standstill: Standstill | None,
    ) -> None:
        self.comm, self.seconds = comm, seconds
        self.messages, self.standstill = messages, standstill
        self.caller = threading.get_ident()
        self.places: list[str] = []  # where the call was at each look
        self.latest_place = ""
        self.call_ended = threading.Event()
        self.begun = time.monotonic()
        threading.Thread(target=self._run, name="parlab-watchdog", daemon=True).start()

    def end(self) -> None:
        """Stop looking: the call has ended."""
        self.call_ended.set()
        if self.standstill is not None:
            if self.standstill.stuck:  # another rank's watchdog may free it before its own looks
                self.places.append(self.latest_place)
            self.standstill.ended()

    def _run(self) -> None:
        # Look twice: another rank's watchdog may free this rank before the second look. The call
        # may then return without an error, and the second look would not find it any more.
        looks, sent, looked = 0, 0, 0.0
        least = LEAST_LOOKS * self.seconds / 2 / STEP_SECONDS
        latest, next_look = self.begun + (PATIENCE - 0.5) * self.seconds, self.begun
        while looks < 2:
            next_look += self.seconds / 2
            stands_still = self._stands_still_until(next_look)
            if self.call_ended.is_set():
                return
            self.places.append(self.latest_place)
            if stands_still:
                break
            before, sent = sent, self.messages()
            continues = looks == 1 and sent > before
            if self.standstill is not None:
                looked, earlier = self.standstill.fewest_looks(), looked
                continues = continues or looked - earlier < least
            looks += not continues or time.monotonic() >= latest
        if not self.call_ended.wait(LOOK_SECONDS):
            _revoke(self.comm)  # and those made from it: each rank's watchdog frees its own

    def _stands_still_until(self, moment: float) -> bool:
        """Wait until `moment`. Return early, with True, if the ranks of the call are deadlocked."""
        while not self.call_ended.wait(min(STEP_SECONDS, max(moment - time.monotonic(), 0.0))):
            self.latest_place = _place_of_thread(self.caller)
            if self.standstill is not None and self.standstill.look(self.caller):
                return True
            if time.monotonic() >= moment:
                return False
        return False


def run_watched(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    comm: MPI.Intracomm,
    seconds: float,
    messages: Callable[[], int] = lambda: 0,
    standstill: Standstill | None = None,
) -> Ended:
    """Call `function(*arguments)`. Revoke `comm` if it raises or takes more than `seconds`.

    A call whose number of `messages` grows is slow but not stuck, as on a busy machine. The same is
    true if `standstill` shows that the machine does not run one of the ranks. The time limit is
    then `PATIENCE` times as long. If `standstill` finds a deadlock, `comm` is revoked at once.
    """
    watch = _Watch(comm, seconds, messages, standstill)
    try:
        ended = Ended("returned", function(*arguments))
    except Exception as error:
        ended = _of_error(error, comm)
    finally:
        watch.end()
    places = watch.places
    if places and is_revoked(comm):
        ended = Ended("stuck")  # even if it returned after it was freed
    if places and ended.kind in ("returned", "stuck"):
        ended = replace(ended, line=places[-1])
    if ended.kind != "returned":
        _revoke(comm, alone=True)  # the others may be waiting for this rank
    return ended


def agreed(endings: dict[int, Ended]) -> dict[int, Ended]:
    """Return how the call ended on each rank, corrected by what the other ranks saw.

    A freed call may return without an error, such as a send whose receiver was freed first. This
    can happen even before its rank notices that the communicator is revoked. If any rank was stuck,
    each rank that still ran the function when the watchdogs looked therefore counts as stuck.
    """
    if not any(ended.kind == "stuck" for ended in endings.values()):
        return endings
    return {
        rank: replace(ended, kind="stuck") if ended.kind == "returned" and ended.line else ended
        for rank, ended in endings.items()
    }


def is_stub(error: Exception) -> bool:
    """Return True for the error of a stub. PyTorch raises NotImplementedError, too."""
    return isinstance(error, NotImplementedError) and bool(re.match(r"exercise |$", str(error)))


def _of_error(error: Exception, comm: MPI.Intracomm) -> Ended:
    if is_stub(error):
        return Ended("unfinished", error=str(error))
    line = _place_of_traceback(error.__traceback__)
    if not isinstance(error, MPI.Exception):
        return Ended("raised", error=f"{type(error).__name__}: {error}", line=line)
    # If another rank revokes the communicator during a collective, it may raise any error.
    freed = is_revoked(comm) and refusal(str(error)) is None
    if freed or error.Get_error_class() == MPI.ERR_REVOKED:
        return Ended("stuck", line=line)
    return Ended("raised", error=str(error), line=line)


def is_revoked(comm: MPI.Intracomm) -> bool:
    """Return whether `comm` was revoked. After that, errors do not count against the function."""
    with contextlib.suppress(MPI.Exception, NotImplementedError):
        return comm.Is_revoked()
    return False


def _revoke(comm: MPI.Intracomm, *, alone: bool = False) -> None:
    """Revoke `comm` and, unless `alone`, this rank's communicators that were made from it.

    If another rank has revoked `comm`, this rank still has to revoke the others, because that rank
    may not have them.
    """
    with contextlib.suppress(MPI.Exception, NotImplementedError):
        getattr(comm, "revoke_alone", comm.Revoke)() if alone else comm.Revoke()


def _is_learners(file: str) -> bool:
    # Frames of compiled modules have relative file names, such as "mpi4py/MPI.src/Comm.pyx".
    return Path(file).is_absolute() and not file.startswith(_LIBRARIES)


def _place(code: CodeLine) -> str:
    source = linecache.getline(code.file, code.number).strip()
    inside = "" if code.function == "<module>" else f" of {code.function}"
    return f"line {code.number}{inside}: {source}"


def _place_of_thread(thread: int) -> str:
    learners = (code for code in calls_of(thread) if _is_learners(code.file))
    innermost = next(learners, None)
    return _place(innermost) if innermost else ""


def _place_of_traceback(tb: TracebackType | None) -> str:
    line = ""
    while tb is not None:
        code = tb.tb_frame.f_code
        if _is_learners(code.co_filename):
            line = _place(CodeLine(code.co_filename, tb.tb_lineno, code.co_name))
        tb = tb.tb_next
    return line
