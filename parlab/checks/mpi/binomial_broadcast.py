"""Exercise `binomial_broadcast`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, same
from parlab.checks.base.messages import no_pickles, only_messages
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.mpi._arrays import nothing_returned, random_numbers
from parlab.checks.mpi._comms import LonelyComm, delayed
from parlab.costs.collectives import ceil_log2

# Rank 0 sends late: after the other ranks have waited for LATE seconds, or after MOST seconds.
LATE, MOST, POLL_SECONDS = 0.15, 2.0, 0.01
MORE_RANKS = (7, 13, 32)
FORMS: list[tuple[tuple[int, ...], type]] = [
    ((7,), np.float64),
    ((3, 5), np.int32),
    ((), np.float32),
    ((2, 2, 3), np.complex128),
]

MISTAKES = Mistakes(
    next_broadcast=(
        "`x` holds the data of the next broadcast. Another rank has already begun it, and a "
        "receive from MPI.ANY_SOURCE takes its message. Receive from the rank whose turn it is"
    ),
    not_in_place="`x` has not changed, although a message arrived. Receive into `x` itself",
    never_arrived=(
        "`x` has not changed, and this rank received nothing. Continue until all ranks have the "
        "data"
    ),
    wrong_root="`x` holds the data of rank 0, but the root is rank {root}",
    received_again=(
        "rank {rank} receives {got} messages, expected {right}. Send only to ranks that do not "
        "have the data"
    ),
    too_many_rounds=(
        "it takes {got} rounds on {size} ranks, but {right} are enough. In each round, let every "
        "rank that has the data send it to one that does not"
    ),
)


@check_of(MISTAKES)
def binomial_broadcast(check: Check) -> str:
    """Check results, messages, and rounds for every root, on several numbers of ranks."""
    for trial in check.trials(unbuffered=True):
        for _, root in trial.cases({f"root {root}": root for root in range(trial.size)}):
            broadcast(trial, root, *FORMS[root % len(FORMS)])
    with check.trial(unbuffered=True) as trial:
        if trial.rank == 0:
            trial.comm = delayed(trial.comm._watched, trial.ledger, after_the_others(trial))
        roots = {f"a broadcast from rank 0, then from {r}": r for r in range(1, trial.size)}
        for _, root in trial.cases(roots):
            two_broadcasts(trial, root)
        trial.situation = ""  # because it simulates other numbers of ranks
        trial.require(lambda: few_rounds_on_more_ranks(check.function))
    return (
        f"the root's data on every rank, for every root on 1 to {check.world_size} ranks; each "
        "rank gets it once, all in ⌈log₂ N⌉ rounds"
    )


def broadcast(trial: Trial, root: int, shape: tuple[int, ...], dtype: Any) -> None:
    arrays = random_numbers(trial.draw, trial.size, shape, dtype)
    before = arrays[trial.rank]
    x = before.copy()
    got = trial.run(x, root, trial.comm)
    unchanged = (
        "not_in_place" if trial.takes_part and trial.receives(trial.rank) else "never_arrived"
    )
    trial.require(
        lambda: only_messages(trial),
        lambda: no_pickles(trial),
        lambda: of_rank_0(x, arrays, root, trial.rank),
        lambda: explained(x, arrays[root], {unchanged: before}, MISTAKES, "`x`"),
        lambda: nothing_returned(got, "`x` to be filled"),
        lambda: sent_whole(trial, x.nbytes),
        lambda: received_once(trial, root),
        lambda: few_rounds(tree_rounds(sent_to(trial), root), trial.size),
    )


def after_the_others(trial: Trial) -> Iterator[float]:
    """Yield a delay of 0 for each send. Before all but the first, wait for the other ranks."""
    while True:
        yield 0.0
        latest = time.monotonic() + MOST
        while not trial.others_wait(LATE) and time.monotonic() < latest:
            time.sleep(POLL_SECONDS)


def two_broadcasts(trial: Trial, root: int) -> None:
    """Check two broadcasts. Some ranks begin the second while others are in the first."""
    arrays = random_numbers(trial.draw, trial.size, 7, np.float64)
    first, second = (arrays[trial.rank].copy() for _ in range(2))

    def both(function: Callable[..., Any], comm: MPI.Intracomm) -> None:
        function(first, 0, comm)
        function(second, root, comm)

    trial.run_function(both, trial.check.function, trial.comm)
    variants = {"next_broadcast": arrays[root]}
    trial.require(
        lambda: explained(first, arrays[0], variants, MISTAKES, "`x` of the first"),
        lambda: equal(second, arrays[root], "`x` of the second"),
    )


def of_rank_0(x: np.ndarray, arrays: list[np.ndarray], root: int, rank: int) -> Finding | None:
    from_0 = root != 0 != rank and same(x, arrays[0])
    return MISTAKES.wrong_root(root=root) if from_0 else None


def received_once(trial: Trial, root: int) -> Finding | None:
    for rank in range(trial.size):
        got, right = len(trial.receives(rank)), int(rank != root)
        if got != right:
            return MISTAKES.received_again(rank=rank, got=got, right=right)
    return None


def sent_whole(trial: Trial, size: int) -> Finding | None:
    for rank in range(trial.size):
        for call in trial.sends(rank):
            if call.bytes_sent != size:
                return observed(
                    f"rank {rank} sends a message of {call.bytes_sent} bytes, but `x` has {size}"
                )
    return None


def sent_to(trial: Trial) -> list[list[int]]:
    return [[call.to for call in trial.sends(rank)] for rank in range(trial.size)]


def tree_rounds(destinations: list[list[int]], root: int) -> int | None:
    """Count the rounds of a broadcast in which rank r sends to `destinations[r]`, in order.

    Return None if it does not reach all ranks.
    """
    arrival, ranks, rounds = {root: 0}, [root], 0
    for rank in ranks:
        for number, destination in enumerate(destinations[rank], arrival[rank] + 1):
            rounds = max(rounds, number)
            if destination not in arrival:
                arrival[destination] = number
                ranks.append(destination)
    return rounds if len(arrival) == len(destinations) else None


def broadcast_rounds(broadcast: Callable[..., Any], root: int, size: int) -> int | None:
    """Count the rounds on more ranks than exist, by running each rank's part separately.

    Return None if that does not work, for example, if the function splits its communicator.
    """
    own, data = MPI.COMM_SELF.Dup(), np.zeros(3)
    comms = [LonelyComm(own, rank, size, data) for rank in range(size)]
    try:
        for comm in comms:
            broadcast(data.copy(), root, comm)
    except Exception:
        return None
    own.Free()
    return tree_rounds([comm.destinations for comm in comms], root)


def few_rounds(got: int | None, size: int) -> Finding | None:
    if got is None or got <= ceil_log2(size):
        return None
    return MISTAKES.too_many_rounds(got=got, right=ceil_log2(size), size=size)


def few_rounds_on_more_ranks(function: Callable[..., Any]) -> Finding | None:
    """Count the rounds on many ranks, because on few ranks, other trees take as many rounds."""
    for size in MORE_RANKS:
        for root in (0, size // 2):
            if (finding := few_rounds(broadcast_rounds(function, root, size), size)) is not None:
                return finding
    return None
