"""On each rank: runs checks on answers, one after the other.

    python -m parlab.mpirun -n 4 -m parlab.mutation.worker SOCKET

Rank 0 reads one request a line from the socket, as JSON: `setup`, code that all answers to a lab's
exercises build on; the `answer` to one of them; the `code` of a check, and its `seconds`; and those
after which one call is `stuck`. It answers with the fields of `Outcome`. After each, communicators
are new; an answer that hangs is freed first, as in a lab. Who reads the socket ends the ranks where
that is not enough.
"""

import _thread
import contextlib
import io
import json
import linecache
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import IPython.display
from mpi4py import MPI

from parlab.checks import trial
from parlab.engine import freeing
from parlab.engine.recovery import recover
from parlab.rank import comm

POLL_SECONDS = 0.001
GRACE_SECONDS = 1.0  # between two ways to free a rank, the second more drastic

# No local variable of anyone, so that freeing ranks leaves it alone.
_agreement: list[MPI.Intracomm] = []


@dataclass(frozen=True)
class Outcome:
    """How a check ended: `accepted`; `rejected`, by itself; `failed`; `stuck` until it was freed.

    A hidden check that is `accepted` has come to its end: whether its values are right is for
    others to say.
    """

    outcome: str
    message: str = ""
    mistake: str | None = None
    values: Any = None
    seconds: float = 0.0


def gather(value: Any) -> list[Any]:
    """Every rank's value. Collective; ranks that are early sleep."""
    arrived = _agreement[0].Ibarrier()
    while not arrived.Test():
        time.sleep(POLL_SECONDS)
    return _agreement[0].allgather(value)


def requests(path: str) -> Iterator[tuple[dict[str, Any], Callable[[Outcome], None]]]:
    """What is asked, on all ranks, each with the function that answers."""
    lines = None
    if comm.rank == 0:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        lines = connection.makefile("rw")

    def answer(outcome: Outcome) -> None:
        if lines:
            print(json.dumps(asdict(outcome)), file=lines, flush=True)

    while line := gather(lines.readline() if lines else None)[0]:
        yield json.loads(line), answer


class Deadline:
    """Frees this rank when its work takes too long; `passed` says whether it had to."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.passed = seconds, False
        self.done, self.lock = threading.Event(), threading.Lock()

    def __enter__(self) -> "Deadline":
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.done.set()

    def _wait(self) -> None:
        wait = self.seconds
        for free in (freeing.revoke, _thread.interrupt_main, _close_torch, _thread.interrupt_main):
            if self.done.wait(wait):
                return
            wait = GRACE_SECONDS
            with self.lock, contextlib.suppress(Exception):
                if not self.done.is_set():
                    self.passed = True
                    free()


def _close_torch() -> None:
    if groups := sys.modules.get("parlab.rank.torch_groups"):
        groups.close()


def watched(work: Callable[[], None], seconds: float) -> Outcome:
    """How the work ended on all ranks together. Collective."""
    own = Outcome("stuck", "interrupted")
    with contextlib.suppress(KeyboardInterrupt):  # one that comes late ends here
        with Deadline(seconds) as deadline:
            own = _outcome(work)
        if deadline.passed:
            own = replace(own, outcome="stuck")
        time.sleep(0)
    everyone = gather(own)
    worst = ("accepted", "rejected", "failed", "stuck")
    return max(everyone, key=lambda one: (worst.index(one.outcome), one.values is not None))


def _outcome(work: Callable[[], None]) -> Outcome:
    from parlab.checks import CheckFailed

    shown: list[Any] = []
    IPython.display.display = lambda value, **_: shown.append(getattr(value, "data", None))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            work()
    except CheckFailed as failed:
        return Outcome("rejected", str(failed), failed.finding.mistake)
    except BaseException as error:  # the answer's, in a hidden check; else the check's own
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        return Outcome("failed", f"{type(error).__name__}: {error} ({where})")
    return Outcome("accepted", values=shown)


@cache
def references(setup: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "lab"}
    run(setup, names, "setup")
    return names


def with_answer(setup: str, answer: str) -> dict[str, Any]:
    """What the lab's cells see after this answer. The references go on with each other."""
    names = dict(references(setup))
    run(answer, names, "answer")
    return names


def run(code: str, names: dict[str, Any], title: str) -> None:
    """Run code as a cell; what checks say can quote its lines."""
    file = f"/{title}.py"  # checks take a relative path for a library's
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), names)


def outcome_of(setup: str, answer: str, code: str, seconds: float, stuck: float) -> Outcome:
    """One answer against the code of one check. Collective."""
    trial.STUCK_SECONDS = stuck
    references(setup)  # torch may take longer to import than any answer may run
    start = time.monotonic()
    outcome = watched(lambda: run(code, with_answer(setup, answer), "check"), seconds)
    taken = time.monotonic() - start
    # What an answer has sent, and nobody has received, must not meet the next one.
    recover({}, 0)
    return replace(outcome, seconds=round(taken, 3))


def main(path: str) -> None:
    _agreement.append(comm.Dup())  # unknown to parlab, which would renew it
    freeing.prepare()
    for asked, answer in requests(path):
        answer(outcome_of(**asked))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # what answers have left behind need not be tidied up
