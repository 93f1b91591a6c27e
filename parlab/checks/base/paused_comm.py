"""Short pauses before messages, so that the ranks arrive in a different order in every trial.

Answers that depend on which rank comes first, or that use data before its message has arrived, pass
by luck if all ranks are equally fast. With pauses, they fail in some of a check's many trials. The
pauses depend only on the check's seed, the trial, and the rank.

MPI may read the memory of a send until its request is complete. It usually copies small messages at
once, so an answer that changes the memory too early passes by luck. Here, the next call detects the
change, except for `MPI.Request.Waitall` and similar functions, which cannot be watched.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.base.refused_calls import CHANGED_BEFORE_WAIT
from parlab.checks.base.unbuffered import UnbufferedComm
from parlab.ledger import Ledger
from parlab.ledger.watched import RECORDED, WatchedRequest

SHARE = 0.25  # the share of calls with a pause before them
LONGEST = 0.003  # seconds: long compared with a small message


class Pauses:
    """Sleeps before some calls, for a time that the seed determines. Call it as `pauses()`."""

    def __init__(self, seed: int, trial: int, rank: int) -> None:
        self._random = Random(f"{seed} {trial} {rank}")

    def __call__(self) -> None:
        if self._random.random() < SHARE:
            time.sleep(self._random.uniform(0, LONGEST))


def no_pauses() -> None:
    """Do not sleep, for trials that measure time."""


class Sending:
    """The sends of a rank that are not complete, and the data in their memory at the start."""

    def __init__(self) -> None:
        self._sends: list[tuple[MPI.Request, np.ndarray, bytes]] = []

    def add(self, request: MPI.Request, memory: Any) -> None:
        """Watch the memory of a send if it is a whole array. A list may specify part of one.

        A send to MPI.PROC_NULL is no message, and its request is not watched.
        """
        if isinstance(memory, np.ndarray) and isinstance(request, WatchedRequest):
            self._sends.append((request, memory, memory.tobytes()))
            for name in ("Wait", "wait", "Test", "test"):
                setattr(request, name, self._before(getattr(request, name)))

    def _before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.require_unchanged()
            return method(*arguments, **options)

        return call

    def require_unchanged(self) -> None:
        """Raise RuntimeError if the memory of a send has changed before a wait for it."""
        self._sends = [entry for entry in self._sends if entry[0] != MPI.REQUEST_NULL]
        if any(memory.tobytes() != sent for _, memory, sent in self._sends):
            raise RuntimeError(f"Isend: {CHANGED_BEFORE_WAIT}")


def paused(comm: MPI.Intracomm, ledger: Ledger, pauses: Callable[[], None]) -> MPI.Intracomm:
    """Return `comm` without buffers, watched by `ledger`, with pauses before its calls.

    Communicators made from it share the pauses. If the memory of an `Isend` has changed before the
    wait, the next call raises RuntimeError.
    """
    sending = Sending()
    methods = {name: _paused(name, pauses, sending) for name in RECORDED}
    return type("PausedComm", (UnbufferedComm,), methods)(comm, ledger)


def _paused(name: str, pauses: Callable[[], None], sending: Sending) -> Callable[..., Any]:
    method = getattr(UnbufferedComm, name)

    def call(self: MPI.Intracomm, *arguments: Any, **options: Any) -> Any:
        sending.require_unchanged()
        pauses()
        result = method(self, *arguments, **options)
        if name in ("Isend", "Issend"):
            sending.add(result, arguments[0] if arguments else options["buf"])
        return result

    return call
