"""Exercise `binomial_broadcast`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.messages import no_pickles, only_messages, step
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.late_answers import late_answers
from parlab.checks.mpi.numbers import nothing_returned, random_numbers
from parlab.checks.rounds import Step, rounds
from parlab.checks.trial import Trial
from parlab.costs.collectives import ceil_log2

MISTAKES = Mistakes(
    root_changed="the root's own data has changed: the root sends `x`, and receives nothing",
    next_broadcast=(
        "`x` holds the data of the next broadcast, which rank {next} began when this rank was "
        "still waiting in this one: a message from MPI.ANY_SOURCE may be anybody's. Receive from "
        "the rank whose turn it is"
    ),
    not_in_place=(
        "`x` holds what it held before, although the data came: it has to arrive in `x` itself, "
        "not in another array of that name"
    ),
    never_arrived=(
        "`x` holds what it held before, and this rank received nothing: the rounds end before "
        "all have the data, or leave out this rank"
    ),
    root_receives="rank {rank} is the root and receives {count} messages: it has the data already",
    twice=(
        "rank {rank} receives {count} messages where 1 is needed: send only to ranks that have "
        "not got the data yet"
    ),
    other_bytes="rank {rank} sends a message of {got} bytes where `x` has {right}",
    wrong_root="`x` holds the data of rank {got}, where that of the root, rank {root}, is right",
    too_many_rounds=(
        "it takes {taken} rounds where {least} are enough: in every round each rank that has the "
        "data sends it to one that has not, so that their number doubles"
    ),
)
LATE = 0.02  # seconds: long beside a message
FORMS: list[tuple[tuple[int, ...], type]] = [
    ((7,), np.float64),
    ((3, 5), np.int32),
    ((), np.float32),
    ((2, 2, 3), np.complex128),
]


@check_of(MISTAKES)
def binomial_broadcast(check: Check) -> str:
    """Check results, messages and rounds for every root, on several numbers of ranks."""
    for trial in check.trials(unbuffered=True):
        situation = trial.situation
        for root in range(trial.size):
            shape, dtype = FORMS[root % len(FORMS)]
            trial.situation = f"{situation}, root {root}, shape {shape}"
            broadcast(trial, root, random_numbers(trial.draw, trial.size, shape, dtype))
    for trial in in_a_row(check):
        numbers = random_numbers(trial.draw, trial.size, 7, np.float64)
        for root in range(1, trial.size):
            trial.situation = f"a broadcast from rank 0 and at once the next, from rank {root}"
            two_broadcasts(trial, root, numbers)
    return (
        f"the root's data on every rank, for every root on 1 to {check.world_size} ranks; each "
        "rank gets it once, all in ⌈log₂ N⌉ rounds"
    )


def in_a_row(check: Check) -> Iterator[Trial]:
    """A trial on all ranks in which rank 0's messages, but for its first, leave late."""
    with check.trial(unbuffered=True) as trial:
        if trial.rank == 0:
            trial.comm = late_answers(trial.comm._watched, trial.ledger, [0.0, *[LATE] * 9])
        yield trial


def two_broadcasts(trial: Trial, root: int, numbers: list[np.ndarray]) -> None:
    """Whoever is through with the first goes on: some ranks may still wait in it."""
    first, second = (np.array(numbers[trial.rank]) for _ in range(2))

    def both(function: Callable[..., Any], comm: MPI.Intracomm) -> None:
        function(first, 0, comm)
        function(second, root, comm)

    trial.run_function(both, trial.check.function, trial.comm)
    trial.require(
        lambda: MISTAKES.next_broadcast(next=root) if same(first, numbers[root]) else None,
        lambda: equal(first, numbers[0], "`x` of the first"),
        lambda: equal(second, numbers[root], "`x` of the second"),
    )


def broadcast(trial: Trial, root: int, numbers: list[np.ndarray]) -> None:
    x = np.array(numbers[trial.rank])
    got = trial.run(x, root, trial.comm)
    trial.require(
        lambda: only_messages(trial),
        lambda: no_pickles(trial),
        lambda: of_the_root(x, numbers, root, trial.rank),
        lambda: arrived(trial, x, numbers[root], numbers[trial.rank], trial.rank == root),
        lambda: nothing_returned(got, "`x` to be filled"),
        lambda: received_once(trial, root),
        lambda: of_the_right_size(trial, x.nbytes),
        lambda: few_rounds(trial),
    )


def of_the_root(x: np.ndarray, numbers: list[np.ndarray], root: int, rank: int) -> Finding | None:
    for source, data in enumerate(numbers):
        if source not in (root, rank) and same(x, data):
            return MISTAKES.wrong_root(got=source, root=root)
    return None


def arrived(
    trial: Trial, x: np.ndarray, data: np.ndarray, other: np.ndarray, is_root: bool
) -> Finding | None:
    if same(x, data):
        return None
    if is_root:
        return MISTAKES.root_changed()
    if same(x, other):
        came = trial.receives(trial.rank)
        return MISTAKES.not_in_place() if came else MISTAKES.never_arrived()
    return equal(x, data, "`x`")


def received_once(trial: Trial, root: int) -> Finding | None:
    for rank in range(trial.size):
        count = len(trial.receives(rank))
        if rank == root and count:
            return MISTAKES.root_receives(rank=rank, count=count)
        if rank != root and count != 1:
            return MISTAKES.twice(rank=rank, count=count)
    return None


def of_the_right_size(trial: Trial, size: int) -> Finding | None:
    for rank in range(trial.size):
        for call in trial.sends(rank):
            if call.bytes_sent != size:
                return MISTAKES.other_bytes(rank=rank, got=call.bytes_sent, right=size)
    return None


def few_rounds(trial: Trial) -> Finding | None:
    taken, least = rounds([in_order(program) for program in trial.calls]), ceil_log2(trial.size)
    if taken is not None and taken > least:
        return MISTAKES.too_many_rounds(taken=taken, least=least)
    return None


def in_order(calls: list) -> list[Step]:
    """The calls of a rank, where nothing is sent on before its own data has arrived."""
    steps = [step(call) for call in calls]
    return [Step(s.to, s.source, s.blocking or s.source is not None) for s in steps]
