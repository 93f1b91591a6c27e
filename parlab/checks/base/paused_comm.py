"""Short pauses before messages, so that the ranks meet in another order in every trial.

Answers that depend on which rank comes first, or that use data before its message has arrived, pass
by luck if all ranks are equally fast. With pauses, they fail in some trials of every check. The
pauses depend only on the check's seed, the trial, and the rank.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Any

from mpi4py import MPI

from parlab.checks.base.unbuffered import UnbufferedComm
from parlab.ledger import Ledger
from parlab.ledger.watched import RECORDED

SHARE = 0.25  # of all calls have a pause before them
LONGEST = 0.003  # seconds: long compared with a small message


class Pauses:
    """Sleeps before some calls, for seconds that a seed determines: `pauses()`."""

    def __init__(self, seed: int, trial: int, rank: int) -> None:
        self._random = Random(f"{seed} {trial} {rank}")

    def __call__(self) -> None:
        if self._random.random() < SHARE:
            time.sleep(self._random.uniform(0, LONGEST))


def no_pauses() -> None:
    """Do not sleep, for trials that measure time."""


def paused(comm: MPI.Intracomm, ledger: Ledger, pauses: Callable[[], None]) -> MPI.Intracomm:
    """Return `comm` without buffers, watched by `ledger`, with pauses before its calls.

    Communicators made from it share the pauses.
    """
    methods = {name: _paused(name, pauses) for name in RECORDED}
    return type("PausedComm", (UnbufferedComm,), methods)(comm, ledger)


def _paused(name: str, pauses: Callable[[], None]) -> Callable[..., Any]:
    method = getattr(UnbufferedComm, name)

    def call(*arguments: Any, **options: Any) -> Any:
        pauses()
        return method(*arguments, **options)

    return call
