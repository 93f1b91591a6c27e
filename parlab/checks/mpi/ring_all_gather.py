"""Exercise `ring_all_gather`."""

import numpy as np

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.messages import no_pickles, only_messages
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.mpi._arrays import nothing_returned, random_numbers
from parlab.checks.mpi._rings import RING, ring_messages, vectors
from parlab.chunks import chunk

MISTAKES = Mistakes(
    **RING,
    not_in_place=(
        "`x` has not changed, although messages arrived. Receive the chunks into `x` itself"
    ),
    never_arrived="chunk {index} of `x` is the same as before. Receive it into its place in `x`",
)


@check_of(MISTAKES)
def ring_all_gather(check: Check) -> str:
    """Check the messages, and that every rank ends with all chunks."""
    for trial in check.trials(unbuffered=True):
        for _, (length, dtype) in trial.cases(vectors(trial)):
            *before, whole = random_numbers(trial.draw, trial.size + 1, length, dtype)
            own = chunk(length, trial.rank, trial.size)
            before[trial.rank][own] = whole[own]
            x = before[trial.rank].copy()
            got = trial.run(x, trial.comm)
            trial.require(
                lambda: only_messages(trial),
                lambda: no_pickles(trial),
                lambda: all_chunks(x, before[trial.rank], whole, trial),
                lambda: nothing_returned(got),
                *ring_messages(MISTAKES, trial, x, left_out=1),
            )
    return (
        f"all chunks on every rank, on 1 to {check.world_size} ranks, also if chunks are uneven or "
        "empty; N−1 messages a rank, each of one chunk, all at once"
    )


def all_chunks(
    x: np.ndarray, before: np.ndarray, whole: np.ndarray, trial: Trial
) -> Finding | None:
    """Report the first wrong chunk to arrive, because it may be the reason for later ones."""
    if same(x, before) and not same(x, whole) and trial.receives(trial.rank):
        return MISTAKES.not_in_place()
    for step in range(trial.size):
        index = (trial.rank - step) % trial.size
        part = chunk(len(x), index, trial.size)
        if (finding := equal(x[part], whole[part], f"chunk {index} of `x`")) is not None:
            unchanged = step and same(x[part], before[part])
            return MISTAKES.never_arrived(index=index) if unchanged else finding
    return None
