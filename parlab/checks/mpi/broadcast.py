"""Exercise `binomial_broadcast`."""

from collections.abc import Callable
from random import Random

import numpy as np
from mpi4py import MPI

from parlab.checks.base import Check, difference, fresh_seed, random_numbers
from parlab.checks.mpi.rounds import Step, rounds
from parlab.checks.mpi.trial import Trial, trial, worlds
from parlab.costs.collectives import ceil_log2

Broadcast = Callable[[np.ndarray, int, MPI.Intracomm], None]


def binomial_broadcast(function: Broadcast) -> None:
    """Check results, messages and rounds for every root, on several numbers of ranks."""
    check = Check("binomial_broadcast")
    draw = Random(fresh_seed())
    for ranks in worlds(check, draw):
        for root in range(len(ranks)):
            dtype = draw.choice([np.float64, np.float32, np.int64])
            shape = (draw.randrange(1, 5), 2 * draw.randrange(1, 9) + 1)
            seed = draw.getrandbits(32)
            with trial(check, function, ranks) as sent:
                _broadcast(sent, root, random_numbers(seed, 2, shape, dtype))
    check.passed(
        f"the root's data on every rank, for every root on 1 to {check.world_size} ranks; each "
        "rank gets it once, all in ⌈log₂ N⌉ rounds"
    )


def _broadcast(sent: Trial, root: int, numbers: list[np.ndarray]) -> None:
    data, other = numbers
    x = (data if sent.rank == root else other).copy()
    sent.situation += f", root {root}"
    sent.run(x, root)
    sent.agree(_received(x, data, other, sent.rank == root) if sent.comm is not None else None)
    sent.no_pickles()
    for rank in range(sent.size):
        _received_once(sent, rank, rank == root, data.nbytes)
    taken, least = rounds(_in_order(sent)), ceil_log2(sent.size)
    if taken != least:
        sent.fail(
            f"it takes {taken} rounds where {least} are enough: in every round each rank that "
            "has the data sends it to one that has not, so that their number doubles"
        )


def _received(x: np.ndarray, data: np.ndarray, other: np.ndarray, is_root: bool) -> str | None:
    if is_root:
        return None if np.array_equal(x, data) else "the root's own data has changed"
    if np.array_equal(x, other):
        return "`x` holds what it held before: the root's data has to arrive in `x` itself"
    return difference(x, data, "`x`")


def _received_once(sent: Trial, rank: int, is_root: bool, size: int) -> None:
    receives, expected = sent.receives(rank), 0 if is_root else 1
    if len(receives) != expected:
        who = "the root" if is_root else "a rank"
        sent.fail(
            f"rank {rank} receives {len(receives)} messages where {who} needs {expected}: send "
            "only to ranks that have not got the data yet"
        )
    wrong = [call.bytes_sent for call in sent.sends(rank) if call.bytes_sent != size]
    if wrong:
        sent.fail(f"rank {rank} sends {wrong[0]} bytes of {size}")


def _in_order(sent: Trial) -> list[list[Step]]:
    """The calls, where a rank sends nothing on before its own data has arrived."""
    return [
        [Step(step.to, step.source, step.blocking or step.source is not None) for step in program]
        for program in sent.programs()
    ]
