"""Exercise `ring_reduce_scatter`."""

import numpy as np

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, same
from parlab.checks.base.messages import no_pickles, only_messages
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.mpi._arrays import random_numbers
from parlab.checks.mpi._rings import RING, ring_messages, vectors
from parlab.chunks import chunk

MISTAKES = Mistakes(
    **RING,
    next_chunk=(
        "the result is chunk `rank + 1` of the sum, not chunk `rank`. Shift all rounds by one "
        "chunk: in the first round, rank r must send chunk r − 1"
    ),
    not_added=(
        "the result holds only this rank's own numbers: nothing was added to its chunk. Receive "
        "chunk `rank` in the last round, and add to `x` in place"
    ),
    overwritten=(
        "the result holds the numbers of one other rank. Receive into an array of its own, and add "
        "it to the chunk of `x`"
    ),
    a_copy=(
        "the sum is right, but the result is not chunk `rank` of `x` itself. Add to the chunks of "
        "`x` in place, and return a slice of `x`"
    ),
)


@check_of(MISTAKES)
def ring_reduce_scatter(check: Check) -> str:
    """Check each rank's chunk of the sum, and the messages."""
    for trial in check.trials(unbuffered=True):
        for _, (length, dtype) in trial.cases(vectors(trial)):
            arrays = random_numbers(trial.draw, trial.size, length, dtype)
            x = arrays[trial.rank].copy()
            got = trial.run(x, trial.comm)
            trial.require(
                lambda: only_messages(trial),
                lambda: no_pickles(trial),
                lambda: own_chunk(got, arrays, trial),
                lambda: a_view(got, x, trial),
                *ring_messages(MISTAKES, trial, x, left_out=0),
            )
    return (
        f"rank r holds chunk r of the sum, in `x` itself, on 1 to {check.world_size} ranks, also "
        "if chunks are uneven or empty; N−1 messages a rank, each of one chunk, all at once"
    )


def own_chunk(got: object, arrays: list[np.ndarray], trial: Trial) -> Finding | None:
    rank, size, total = trial.rank, trial.size, sum(arrays)
    own, following = (chunk(len(total), index, size) for index in (rank, rank + 1))
    variants = {
        "next_chunk": total[following],
        "not_added": arrays[rank][own],
        "overwritten": arrays[(rank + 1) % size][own],
    }
    return explained(got, total[own], variants, MISTAKES)


def a_view(got: np.ndarray, x: np.ndarray, trial: Trial) -> Finding | None:
    own = x[chunk(len(x), trial.rank, trial.size)]
    is_view = same(own, got) and (not got.size or np.shares_memory(own, got))
    return None if is_view else MISTAKES.a_copy()
