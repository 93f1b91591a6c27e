"""Exercise `ring_reduce_scatter`."""

from typing import Any

import numpy as np

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.numbers import random_numbers
from parlab.checks.mpi.rings import DTYPES, RING, SUMS, lengths, ring_messages, wrong_sum
from parlab.checks.trial import Trial
from parlab.chunks import chunk

MISTAKES = Mistakes(
    **RING,
    **SUMS,
    other_chunk=(
        "it returns chunk {got} of the sum, where chunk {right} is right: all rounds work on a "
        "chunk that is {off} too far"
    ),
    complete_elsewhere=(
        "chunk {got} of `x` is complete, where chunk {right} is to be: a chunk is complete after "
        "N − 1 steps, at the left neighbour of the rank where it started"
    ),
    not_in_x=(
        "the result is right, but chunk `comm.rank` of `x` itself does not hold it: `x` is the "
        "work space, add to it in place (`+=` on a slice of it)"
    ),
    a_copy="the result is right, but a copy: return the chunk itself, a view of `x`",
)


@check_of(MISTAKES)
def ring_reduce_scatter(check: Check) -> str:
    """Check the chunk of the sum on each rank, and what was sent to whom in how many rounds."""
    for trial in check.trials(unbuffered=True):
        situation = trial.situation
        for length, dtype in zip(lengths(trial), (*DTYPES, np.float32), strict=True):
            trial.situation = f"{situation}, {length} elements of {np.dtype(dtype)}"
            numbers = random_numbers(trial.draw, trial.size, length, dtype)
            reduce_scatter(trial, numbers)
    return (
        f"rank r holds chunk r of the sum, in `x` itself, on 1 to {check.world_size} ranks, also "
        "where chunks are uneven or empty; N−1 messages a rank, each of one chunk, all at once"
    )


def reduce_scatter(trial: Trial, numbers: list[np.ndarray]) -> None:
    x = np.array(numbers[trial.rank])
    got = trial.run(x, trial.comm)
    messages = ring_messages(MISTAKES, trial, x.size, x.itemsize, times=1, to_the_right=True)
    trial.require(
        *messages[:2],
        lambda: elsewhere(got, x, numbers, trial.rank),
        lambda: own_chunk(got, numbers, trial.rank),
        lambda: in_x(got, x, trial),
        *messages[2:],
    )


def elsewhere(got: Any, x: np.ndarray, numbers: list[np.ndarray], rank: int) -> Finding | None:
    """Whether `x` was summed, into another chunk than the one that was returned."""
    size, total = len(numbers), sum(numbers)

    def complete(index: int) -> bool:
        part = chunk(len(total), index, size)
        return part.stop > part.start and same(x[part], total[part])

    if size == 1 or complete(rank) or not same(got, x[chunk(len(x), rank, size)]):
        return None
    found = [other for other in range(size) if other != rank and complete(other)]
    return MISTAKES.complete_elsewhere(got=found[0], right=rank) if len(found) == 1 else None


def own_chunk(got: Any, numbers: list[np.ndarray], rank: int) -> Finding | None:
    size, total = len(numbers), sum(numbers)
    mine = chunk(len(total), rank, size)
    if (finding := equal(got, total[mine], name := "the result")) is None:
        return None
    if not isinstance(got, np.ndarray) or got.ndim != 1 or not got.size:
        return finding
    for other in range(size):
        if other != rank and same(got, total[chunk(len(total), other, size)]):
            return MISTAKES.other_chunk(got=other, right=rank, off=(other - rank) % size)
    if got.shape != total[mine].shape or got.dtype != total.dtype:
        return finding
    return wrong_sum(MISTAKES, got, [part[mine] for part in numbers], name) or finding


def in_x(got: np.ndarray, x: np.ndarray, trial: Trial) -> Finding | None:
    mine = x[chunk(len(x), trial.rank, trial.size)]
    if not same(mine, got):
        return MISTAKES.not_in_x()
    return None if not got.size or np.shares_memory(mine, got) else MISTAKES.a_copy()
