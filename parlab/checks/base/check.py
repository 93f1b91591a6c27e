"""Runs an exercise's check, on all ranks together.

    @check_of(MISTAKES)
    def ring_shift(check: Check) -> str:
        for trial in check.trials(unbuffered=True):
            x = …
            got = trial.run(x, trial.comm)
            trial.require(lambda: equal(got, …), lambda: rounds_at_most(trial, 3))
        return "what was verified, for the learner to read"

A check is a list of requirements, which are functions that return a `Finding` or None. Every rank
calls `ring_shift(function)`. If all requirements are met, it prints one line. If not, it raises
`CheckFailed` with the same text on every rank. The inputs, and short pauses before messages, are
random; `ring_shift(function, seed=…)` repeats those of a failure.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from parlab.checks.base.block_lab_comms import lab_communicators_refuse
from parlab.checks.base.collective import (
    OtherRankBroke,
    alone,
    gather,
    private_communicator,
    tell_broken,
)
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.report_pass import tell_passed
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import generators
from parlab.checks.base.verdict import CheckFailed, Judge
from parlab.rank.cell import ranks_of_cell
from parlab.runtime.rank_names import by_value, ranks_text


class Check(Judge):
    """One run of an exercise's check, which creates the trials."""

    def trials(
        self,
        *,
        smallest: int = 1,
        unbuffered: bool = False,
        pauses: bool = True,
    ) -> Iterator[Trial]:
        """Yield trials on all ranks, on all in reverse order, and then on fewer, down to one.

        Args:
            smallest: the smallest number of ranks for which the exercise makes sense.
            unbuffered, pauses: see `Trial`.
        """
        everyone = list(range(self.world_size))
        orders = [everyone, everyone[::-1]] if len(everyone) > 1 else [everyone]
        orders += [self.draw.sample(everyone, n) for n in range(len(everyone) - 1, 0, -1)]
        for ranks in orders:
            if len(ranks) >= smallest:
                with self.trial(ranks, unbuffered=unbuffered, pauses=pauses) as trial:
                    yield trial

    @contextmanager
    def trial(
        self, ranks: list[int] | None = None, *, unbuffered: bool = False, pauses: bool = True
    ) -> Iterator[Trial]:
        """Provide a trial on `ranks` of the lab (default: all), in that order. Collective."""
        ranks = list(range(self.world_size)) if ranks is None else ranks
        color, order = (0, ranks.index(self.rank)) if self.rank in ranks else (MPI.UNDEFINED, 0)
        made = private_communicator().Split(color, order)
        # Wait for all ranks: Open MPI 5.0 crashes a rank that is still inside Split when another
        # rank revokes the new communicator.
        gather(None)
        comm = None if made == MPI.COMM_NULL else made
        trial = Trial(self, comm, ranks, unbuffered=unbuffered, pauses=pauses)
        try:
            yield trial
        finally:
            trial.close()
        # Do not free it if a check fails: `Free` waits for all ranks, and some may not call it.
        if comm is not None:
            comm.Free()


Requirements = Callable[[Check], str]


def check_of(
    mistakes: Mistakes, *, ranks: int | None = None
) -> Callable[[Requirements], Callable[[Callable], None]]:
    """Make a check from the decorated function, which has the exercise's name.

    The decorated function gets a `Check`, raises CheckFailed through it, and returns a text that
    says what it verified.

    Args:
        mistakes: the mistakes that the check can name, in addition to `COMMON`.
        ranks: the number of ranks that the check needs; more ranks do not change the verdict. None
            if the check needs all ranks. 1 if the exercise does not use ranks: the check then runs
            only on the first rank, so that the ranks do not compete for cores.
    """

    def decorate(requirements: Requirements) -> Callable[[Callable], None]:
        @functools.wraps(requirements)
        def check(function: Callable[..., Any], *, seed: int | None = None) -> None:
            if finding := _left_out():
                raise CheckFailed(requirements.__name__, finding)
            key = requirements.__name__
            with lab_communicators_refuse(), generators():
                if ranks == 1:
                    verified = _run_on_first_rank(requirements, key, function, seed)
                else:
                    verified = _run(requirements, Check(key, function, seed))
            tell_passed(key, verified)

        check.mistakes = mistakes  # type: ignore[attr-defined]
        check.ranks = ranks  # type: ignore[attr-defined]
        return check

    return decorate


def _left_out() -> Finding | None:
    """Return a finding if this cell runs on only some ranks, because these would wait forever."""
    ranks = ranks_of_cell()
    if ranks is None or len(ranks) == MPI.COMM_WORLD.size:
        return None
    return observed(
        f"the check needs all ranks, but this cell runs only on {ranks_text(ranks)}. Run it "
        "without `--targets`"
    )


def _run(requirements: Requirements, check: Check) -> str:
    try:
        try:
            return requirements(check)
        except (CheckFailed, OtherRankBroke):
            raise  # all ranks raise it here
        except Exception as error:
            tell_broken(f"{type(error).__name__}: {error}")
            raise
    except OtherRankBroke as broke:
        ranks, text = by_value(broke.broken)[0]
        who = "" if len(ranks) == check.world_size else f" ({ranks_text(ranks)})"
        raise CheckFailed(check.key, COMMON.unreadable(error=text + who)) from None


def _run_on_first_rank(
    requirements: Requirements, key: str, function: Callable[..., Any], seed: int | None
) -> str:
    everyone = private_communicator()
    own = everyone.Split(everyone.rank)
    verified, failed = "", None
    if everyone.rank == 0:
        with alone(own):
            check = Check(key, function, seed)
            check.uses_ranks = False
            try:
                verified = _run(requirements, check)
            except CheckFailed as error:
                failed = error.finding, error.repeat
    own.Free()
    verified, failed = gather((verified, failed))[0]
    if failed is not None:
        raise CheckFailed(key, *failed)
    return verified
