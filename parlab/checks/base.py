"""What all checks share: one verdict for all ranks, learners' functions that may fail or hang.

A check runs on all ranks at once. Ranks must never disagree on how it goes on, or the check would
hang itself; so every step that can fail ends in `Check.agree`, which is collective. It speaks
over a communicator of its own, that no learner's message can disturb.
"""

import contextlib
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.watchdog import Ended, agreed, run_watched
from parlab.cluster.report import by_value, ranks_text

# Messages of checks are small, and a correct function needs milliseconds: a function that has not
# ended after this many seconds waits for something that will not come.
STUCK_SECONDS = 5.0
POLL_SECONDS = 0.0005

_private: MPI.Intracomm | None = None


class CheckFailed(AssertionError):
    """An exercise is not right; the message says what to look at, the same on every rank."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: the check's own frames would only bury the message.
        return str(self).splitlines()


def private_communicator() -> MPI.Intracomm:
    """The checks' own communicator over all ranks; made at the first call, which is collective."""
    global _private
    if _private is None:
        from parlab.rank.world import new_communicator

        _private = new_communicator()
    return _private


def gather(value: Any) -> list[Any]:
    """Every rank's `value`, on every rank. Collective.

    Ranks that are early sleep while they wait: with more ranks than cores, spinning would slow
    down the ranks that are still at work.
    """
    comm = private_communicator()
    arrived = comm.Ibarrier()
    while not arrived.Test():
        time.sleep(POLL_SECONDS)
    return comm.allgather(value)


# The tests of the messages fix it: for some mistakes, which of several true messages comes first
# depends on what is drawn.
_seeds = random.Random(os.environ.get("PARLAB_CHECK_SEED", secrets.token_hex(8)))


def fresh_seed() -> int:
    """A random seed, the same on all ranks, another at each call. Collective."""
    return gather(_seeds.getrandbits(32))[0]


def show_values(**values: Any) -> None:
    """Display the values of all ranks as JSON, {name: [of rank 0, of rank 1, …]}. Collective.

    For hidden checks: whoever compares them does so outside the learner's process. Values must be
    what JSON knows, and the same in every run.
    """
    from IPython.display import JSON, display

    told = gather(values)
    if private_communicator().rank == 0:
        display(JSON({name: [value[name] for value in told] for name in values}))


class Check:
    """One run of the check of exercise `key`, on all ranks together."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.comm = private_communicator()
        self.rank, self.world_size = self.comm.rank, self.comm.size

    def fail(self, problem: str) -> None:
        """Raise CheckFailed; every rank must call this, with the same text."""
        raise CheckFailed(f"{self.key}: {problem}")

    def agree(
        self, problem: str | None, *, among: int | None = None, comm: MPI.Intracomm | None = None
    ) -> None:
        """Go on where no rank has a problem, else raise CheckFailed with the first. Collective.

        Args:
            problem: what is wrong on this rank, or None.
            among: how many ranks took part (all, by default): a problem that all of them share
                is told without saying whose it is.
            comm: on ranks that took part in a communicator of their own, that communicator: the
                message then tells ranks by their numbers in it.
        """
        place = (self.rank, among or self.world_size) if comm is None else (comm.rank, comm.size)
        reports = [(place, text) for place, text in gather((place, problem)) if text is not None]
        if not reports:
            return
        ranks, text = by_value({rank: text for (rank, _), text in reports})[0]
        (_, took_part), _ = reports[0]
        self.fail(text if len(ranks) == took_part else f"{ranks_text(ranks)}: {text}")

    def passed(self, verified: str) -> None:
        """Print the line that a learner sees when all is well."""
        print(f"✓ {self.key}: {verified}")

    @contextlib.contextmanager
    def communicator(self, ranks: list[int] | None = None) -> Iterator[MPI.Intracomm | None]:
        """A fresh communicator over `ranks` of the lab, in that order; None on the others.

        Collective over all ranks of the lab. The learner's function gets it as `comm`: it may
        leave messages behind or hang, and nothing else is disturbed.
        """
        ranks = list(range(self.world_size)) if ranks is None else ranks
        color, order = (0, ranks.index(self.rank)) if self.rank in ranks else (MPI.UNDEFINED, 0)
        made = self.comm.Split(color, order)
        # Open MPI 5.0 crashes a rank that is still inside Split when another revokes the result.
        gather(None)
        if made == MPI.COMM_NULL:
            yield None
            return
        yield made
        # Not reached when a check fails: freeing waits for all ranks, and one may be elsewhere.
        made.Free()

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        comm: MPI.Intracomm | None,
        situation: str = "",
        explain: Callable[[dict[int, Ended]], str | None] = lambda endings: None,
        seconds: float = STUCK_SECONDS,
    ) -> Any:
        """Call the learner's function with `arguments`; its result. Collective over all ranks.

        Where it raises on some rank, or has not returned after `seconds`, `comm` is revoked,
        which frees the ranks that wait in it, and the check fails by naming ranks (by their
        numbers in `comm`) and lines.

        Args:
            comm: the communicator that the function uses; None on ranks that take no part.
            situation: added to the message: "with 3 ranks".
            explain: gets how it ended on each rank, and may add what that means.
        """
        took_part = comm is not None
        ended = run_watched(function, arguments, comm, seconds) if took_part else None
        # An array in the result may be large, and is this rank's alone.
        told = (comm.rank, ended.without_value()) if ended else None
        endings = agreed(dict(sorted(entry for entry in gather(told) if entry is not None)))
        problem = describe(endings, situation, self.key)
        if problem:
            because = explain(endings)
            self.fail(problem + (f"\n{because}" if because else ""))
        return ended.value if ended else None


def describe(endings: dict[int, Ended], situation: str = "", key: str = "") -> str | None:
    """What went wrong in a call, by ranks and lines; None when it returned on all ranks."""
    for e in endings.values():
        if e.kind == "unfinished":
            return _not_done(key, e.error)
    where = f" {situation}" if situation else ""
    raised = {rank: e for rank, e in endings.items() if e.kind == "raised"}
    if raised:
        first = next(iter(raised.values()))
        alike = [r for r, e in raised.items() if (e.error, e.line) == (first.error, first.line)]
        who = ranks_text(alike, len(endings))
        return f"{first.error}{where}\n  {who}  {first.line}".rstrip()
    if not any(e.kind == "stuck" for e in endings.values()):
        return None
    groups = by_value({rank: e.line if e.kind == "stuck" else "" for rank, e in endings.items()})
    width = max(len(ranks_text(ranks)) for ranks, _ in groups)
    lines = [
        f"  {ranks_text(ranks):<{width}}  {f'at {line}' if line else 'returned'}"
        for ranks, line in groups
    ]
    return "\n".join([f"does not end{where}; stopped while waiting", *lines])


def _not_done(key: str, stub: str) -> str:
    """Whose stub it was: a function may call one of an earlier exercise."""
    named = re.match(r"exercise (\w+)", stub)
    if named is None or named[1] == key:
        return "not done yet"
    return (
        f"it calls exercise {named[1]}, which is not done yet: do that one first, or put "
        f'use_reference("{named[1]}") in a %%px cell'
    )


def random_numbers(
    seed: int, count: int, shape: int | tuple[int, ...], dtype: Any
) -> list[np.ndarray]:
    """`count` arrays of whole numbers of this shape, one for each rank, the same on all ranks.

    Whole numbers below 2¹⁸ are summed exactly in float32, in any order, for up to 32 ranks: what
    differs is wrong, and not rounding.
    """
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 2**18, shape).astype(dtype) for _ in range(count)]


def difference(got: Any, expected: np.ndarray, name: str = "the result") -> str | None:
    """The first place where `got` differs from `expected`, in words; None when they are equal."""
    if got is None:
        return f"{name} is None: is a `return` missing?"
    if not isinstance(got, np.ndarray):
        return f"{name} is a {type(got).__name__}, not a NumPy array"
    if got.shape != expected.shape:
        return f"{name} has shape {got.shape} where {expected.shape} is right"
    if got.dtype != expected.dtype:
        return f"{name} has dtype {got.dtype} where {expected.dtype} is right"
    wrong = np.argwhere(got != expected)
    if not len(wrong):
        return None
    index = tuple(int(i) for i in wrong[0])
    at = index[0] if len(index) == 1 else index
    return (
        f"{name} differs at index {at}: {got[index]} where {expected[index]} is right "
        f"({len(wrong)} of {expected.size} differ)"
    )
