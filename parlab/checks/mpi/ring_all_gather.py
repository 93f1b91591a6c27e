"""Exercise `ring_all_gather`."""

import numpy as np

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.numbers import nothing_returned, random_numbers
from parlab.checks.mpi.rings import DTYPES, RING, lengths, ring_messages
from parlab.checks.trial import Trial
from parlab.chunks import chunk

MISTAKES = Mistakes(
    **RING,
    not_in_place=(
        "`x` is what it was, although messages came: the chunks have to arrive in `x` itself, not "
        "in another array"
    ),
    own_chunk_changed="chunk {rank}, which is this rank's own, has changed: the others need it",
    never_arrived="chunk {index} of `x` never arrived: it holds what it held before",
    wrong_place="chunk {index} of `x` holds chunk {got}",
    added=(
        "chunk {index} of `x` holds what arrived plus what was there before: on entry only the "
        "rank's own chunk counts, so nothing is added here"
    ),
)


@check_of(MISTAKES)
def ring_all_gather(check: Check) -> str:
    """Check that every rank ends with all chunks, and what was sent to whom in how many rounds."""
    for trial in check.trials(unbuffered=True):
        situation = trial.situation
        for length, dtype in zip(lengths(trial), (*DTYPES, np.float32), strict=True):
            trial.situation = f"{situation}, {length} elements of {np.dtype(dtype)}"
            # The last one is what should arrive; the others lie where it should.
            *before, whole = random_numbers(trial.draw, trial.size + 1, length, dtype)
            all_gather(trial, before[trial.rank], whole)
    return (
        f"all chunks on every rank, on 1 to {check.world_size} ranks, also where chunks are "
        "uneven or empty; N−1 messages a rank, each of one chunk, all at once"
    )


def all_gather(trial: Trial, before: np.ndarray, whole: np.ndarray) -> None:
    before = before.copy()
    mine = chunk(len(whole), trial.rank, trial.size)
    before[mine] = whole[mine]
    x = before.copy()
    got = trial.run(x, trial.comm)
    messages = ring_messages(MISTAKES, trial, x.size, x.itemsize, times=1, to_the_right=True)
    trial.require(
        *messages[:2],
        lambda: all_chunks(x, before, whole, trial),
        lambda: nothing_returned(got),
        *messages[2:],
    )


def all_chunks(
    x: np.ndarray, before: np.ndarray, whole: np.ndarray, trial: Trial
) -> Finding | None:
    if same(x, whole):
        return None
    if same(x, before) and trial.receives(trial.rank):
        return MISTAKES.not_in_place()
    # In the order in which they come: what a later one holds may follow from an earlier one.
    for index in ((trial.rank - step) % trial.size for step in range(trial.size)):
        part = chunk(len(x), index, trial.size)
        if same(x[part], whole[part]):
            continue
        if index == trial.rank:
            return MISTAKES.own_chunk_changed(rank=index)
        if same(x[part], before[part]):
            return MISTAKES.never_arrived(index=index)
        if same(x[part], before[part] + whole[part]):
            return MISTAKES.added(index=index)
        for other in range(trial.size):
            if same(x[part], whole[chunk(len(x), other, trial.size)]):
                return MISTAKES.wrong_place(index=index, got=other)
        break
    return equal(x, whole, "`x`")
