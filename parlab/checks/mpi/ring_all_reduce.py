"""Exercise `ring_all_reduce`."""

import numpy as np

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.messages import no_pickles, only_messages
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.mpi._arrays import nothing_returned, random_numbers
from parlab.checks.mpi._rings import RING, lengths, ring_messages
from parlab.chunks import chunk

MISTAKES = Mistakes(
    **RING,
    not_in_place="`x` has not changed, although messages arrived. Put the sum into `x` itself",
    copy_not_written_back=(
        "`x` has not changed. It is not contiguous, so functions such as `ascontiguousarray` "
        "return a copy. Write the sum back into `x`"
    ),
    only_reduce_scatter=(
        "only chunk {chunk} of `x` holds the sum. After the reduce-scatter, every rank still needs "
        "the chunks of the others"
    ),
)
AROUND_X = Finding(
    "the function changes numbers around `x`, which is a part of a larger array. Write only to `x`",
    "argument_changed",
)

DTYPES = (np.float64, np.float32, np.int64)
# The shape of an array, and the part of it that the function gets.
LAYOUTS = {
    "a matrix": ((5, 7), lambda base: base),
    "a transposed matrix": ((5, 9), lambda base: base.T),
    "every second element": ((23,), lambda base: base[::2]),
    "some columns": ((5, 11), lambda base: base[:, 1:-2]),
    "no dimensions": ((), lambda base: base),
    "axes in another order": ((5, 2, 3), lambda base: base.transpose(1, 2, 0)),
    "a matrix, transposed in memory on odd ranks": ((4, 6), None),
}


@check_of(MISTAKES)
def ring_all_reduce(check: Check) -> str:
    """Check the sum in place for arrays of all shapes and layouts, and the messages."""
    for trial in check.trials(unbuffered=True):
        vectors = {f"{n} elements": ((n,), lambda base: base) for n in lengths(trial)}
        cases = {
            f"{name}, {np.dtype(dtype)}": (*case, dtype)
            for i, (name, case) in enumerate((vectors | LAYOUTS).items())
            for dtype in [DTYPES[i % len(DTYPES)]]
        }
        for _, (shape, view, dtype) in trial.cases(cases):
            all_reduce(trial, shape, view, dtype)
    return (
        f"the sum in place on 1 to {check.world_size} ranks, for any length, shape and layout; "
        "each rank sends 2(N−1) messages of one chunk each, all at once"
    )


def all_reduce(trial: Trial, shape, view, dtype) -> None:
    arrays = random_numbers(trial.draw, trial.size, shape, dtype)
    if view is None:
        arrays = [np.asarray(array, order="CF"[rank % 2]) for rank, array in enumerate(arrays)]
    part = view or (lambda base: base)
    base, expected = arrays[trial.rank].copy(order="K"), arrays[trial.rank].copy()
    x, right = part(base), np.asarray(sum(map(part, arrays)))
    part(expected)[...] = right
    got = trial.run(x, trial.comm)
    trial.require(
        lambda: only_messages(trial),
        lambda: no_pickles(trial),
        lambda: named(x, right, part(arrays[trial.rank]), trial),
        lambda: equal(x, right, "`x`"),
        lambda: None if same(base, expected) else AROUND_X,
        lambda: nothing_returned(got),
        *ring_messages(MISTAKES, trial, x.reshape(-1)),
    )


def named(x: np.ndarray, right: np.ndarray, before: np.ndarray, trial: Trial) -> Finding | None:
    if x.shape != right.shape or same(x, right):
        return None
    if same(x, before) and trial.receives(trial.rank):
        return (MISTAKES.not_in_place if x.flags.c_contiguous else MISTAKES.copy_not_written_back)()
    chunks = [chunk(x.size, index, trial.size) for index in range(trial.size)]
    complete = [i for i, c in enumerate(chunks) if same(x.reshape(-1)[c], right.reshape(-1)[c])]
    if len(complete) == 1 < trial.size - 1 and len(trial.sends(trial.rank)) < trial.size:
        return MISTAKES.only_reduce_scatter(chunk=complete[0])
    return None
