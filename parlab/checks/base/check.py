"""One run of an exercise's check, on all ranks together.

    @check_of(MISTAKES)
    def ring_shift(check: Check) -> str:
        for trial in check.trials(unbuffered=True):
            x = …
            got = trial.run(x, trial.comm)
            trial.require(lambda: equal(got, …), lambda: rounds_at_most(trial, 3))
        return "what was verified, for the learner to read"

A chapter's check is such a list of requirements. `ring_shift(function)` then runs on every rank,
prints one line where all is well, and raises `CheckFailed` with the same text on every rank where
it is not. Requirements are functions that return a `Finding`, or None.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from parlab.checks.base.block_lab_comms import lab_communicators_refuse
from parlab.checks.base.collective import OtherRankBroke, gather, private_communicator, tell_broken
from parlab.checks.base.mistakes import COMMON, Mistakes
from parlab.checks.base.report_pass import tell_passed
from parlab.checks.base.trial import Trial
from parlab.checks.base.verdict import CheckFailed, Judge
from parlab.runtime.rank_names import by_value, ranks_text


class Check(Judge):
    """The check of an exercise at work: it makes the trials."""

    def trials(
        self,
        *,
        smallest: int = 1,
        reordered: bool = True,
        unbuffered: bool = False,
    ) -> Iterator[Trial]:
        """A trial on all ranks; on all in reverse order; then on fewer and fewer, down to one.

        Args:
            smallest: number of ranks below which the exercise makes no sense.
            reordered: whether ranks of the trial may be numbered differently from the lab's;
                else a trial on n ranks has the lab's ranks 0 … n − 1.
            unbuffered: see `Trial`.
        """
        everyone = list(range(self.world_size))
        orders = [everyone, everyone[::-1]] if reordered and len(everyone) > 1 else [everyone]
        for n in range(self.world_size - 1, 0, -1):
            orders.append(self.draw.sample(everyone, n) if reordered else everyone[:n])
        for ranks in orders:
            if len(ranks) >= smallest:
                with self.trial(ranks, unbuffered=unbuffered) as trial:
                    yield trial

    @contextmanager
    def trial(self, ranks: list[int] | None = None, *, unbuffered: bool = False) -> Iterator[Trial]:
        """A trial on `ranks` of the lab, in that order (all, by default). Collective over all."""
        ranks = list(range(self.world_size)) if ranks is None else ranks
        color, order = (0, ranks.index(self.rank)) if self.rank in ranks else (MPI.UNDEFINED, 0)
        made = private_communicator().Split(color, order)
        # Open MPI 5.0 crashes a rank that is still inside Split when another revokes the result.
        gather(None)
        comm = None if made == MPI.COMM_NULL else made
        trial = Trial(self, comm, ranks, unbuffered=unbuffered)
        try:
            yield trial
        finally:
            trial.close()
        # Not reached when a check fails: freeing waits for all ranks, and one may be elsewhere.
        if comm is not None:
            comm.Free()


Requirements = Callable[[Check], str]


def check_of(
    mistakes: Mistakes, *, ranks: int | None = None
) -> Callable[[Requirements], Callable[[Callable], None]]:
    """Make the check of the exercise of that name from its requirements.

    The decorated function gets a `Check`, raises CheckFailed through it, and returns what was
    verified.

    Args:
        mistakes: those that the check can name, in addition to `COMMON`.
        ranks: number of ranks on which the check gives each answer the verdict that it gets on more
            ranks: 1 if ranks have nothing to do with the exercise. None if it needs all of them.
    """

    def decorate(requirements: Requirements) -> Callable[[Callable], None]:
        @functools.wraps(requirements)
        def check(function: Callable[..., Any]) -> None:
            run = Check(requirements.__name__, function)
            with lab_communicators_refuse():
                verified = _run(requirements, run)
            tell_passed(run.key, verified)

        check.mistakes = mistakes  # type: ignore[attr-defined]
        check.ranks = ranks  # type: ignore[attr-defined]
        return check

    return decorate


def _run(requirements: Requirements, check: Check) -> str:
    try:
        try:
            return requirements(check)
        except (CheckFailed, OtherRankBroke):
            raise  # all ranks are here
        except Exception as error:
            tell_broken(f"{type(error).__name__}: {error}")
            raise
    except OtherRankBroke as broke:
        ranks, text = by_value(broke.broken)[0]
        who = "" if len(ranks) == check.world_size else f" ({ranks_text(ranks)})"
        raise CheckFailed(check.key, COMMON.unreadable(error=text + who)) from None
