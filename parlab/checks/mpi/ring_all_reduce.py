"""Exercise `ring_all_reduce`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.numbers import nothing_returned, random_numbers
from parlab.checks.mpi.rings import (
    DTYPES,
    RING,
    SUMS,
    lengths,
    ring_messages,
    wrong_sum,
)
from parlab.checks.trial import Trial
from parlab.chunks import chunk

MISTAKES = Mistakes(
    **RING,
    **SUMS,
    returned_only="the result is returned, but `x` is what it was: the sum belongs in `x` itself",
    not_in_place="`x` is what it was, although messages came: the sum belongs in `x` itself",
    copy_not_written_back=(
        "`x` is what it was: its memory is not in one piece, or in another order, so that what "
        "`reshape(-1)`, `ravel` or `ascontiguousarray` gave was a copy, and the sum stayed in there"
    ),
    only_reduce_scatter=(
        "of `x` only chunk {chunk} holds the sum: after the reduce-scatter every rank still needs "
        "the chunks of the others"
    ),
    shape_changed=(
        "`x` has shape {got} afterwards, and had {right}: it is the caller's array, whose shape "
        "stays as it was"
    ),
    other_order=(
        "the sum is in `x`, with its elements in another order: read and write the memory of `x` "
        "in the order of its indices"
    ),
    memory_order=(
        "numbers are added up that are neighbours in memory, and not those of the same indices: "
        "an array may lie in memory in another order than on another rank. Read it in the order of "
        'its indices (`order="C"`)'
    ),
    between_its_elements=(
        "`x` is a part of a larger array, of which elements that are not in `x` have changed"
    ),
)

# A form makes, of a base array, the array that the function gets.
Form = Callable[[np.ndarray], np.ndarray]


@check_of(MISTAKES)
def ring_all_reduce(check: Check) -> str:
    """Check the sum in place for arrays of all shapes and layouts, and what was sent."""
    for trial in check.trials(unbuffered=True):
        situation = trial.situation
        for told, shape, form in forms(trial):
            dtype = trial.draw.choice(DTYPES)
            trial.situation = f"{situation}, {told} of {np.dtype(dtype)}"
            all_reduce(trial, random_numbers(trial.draw, trial.size, shape, dtype), form)
        # Shape and dtype are the same on all ranks, and nothing is said of the order in memory.
        numbers = random_numbers(trial.draw, trial.size, (4, 6), np.float64)
        mixed = [np.asarray(part, order="CF"[rank % 2]) for rank, part in enumerate(numbers)]
        trial.situation = f"{situation}, a matrix that lies in memory transposed on odd ranks alone"
        all_reduce(trial, mixed, lambda base: base)
    return (
        f"the sum in place on 1 to {check.world_size} ranks, for any length, shape and layout; "
        "each rank sends 2(N−1) messages of one chunk each, all at once"
    )


def forms(trial: Trial) -> Iterator[tuple[str, tuple[int, ...], Form]]:
    for length in lengths(trial):
        yield f"{length} elements", (length,), lambda base: base
    # One row more than ranks: chunks of rows would be uneven.
    matrix = (trial.size + 1, 2 * trial.draw.randrange(3, 7) + 1)
    yield f"a matrix of shape {matrix}", matrix, lambda base: base
    yield "a transposed matrix", matrix, lambda base: base.T
    yield "every second element of a vector", (23,), lambda base: base[::2]
    yield "some columns of a matrix", matrix, lambda base: base[:, 1:-2]
    yield "a number without dimensions", (), lambda base: base
    yield (
        "an array of shape (2, 3, 5) in another order",
        (5, 2, 3),
        lambda base: base.transpose(1, 2, 0),
    )


def all_reduce(trial: Trial, numbers: list[np.ndarray], form: Form) -> None:
    base = np.array(numbers[trial.rank])
    x, parts = form(base), [form(part) for part in numbers]
    got = trial.run(x, trial.comm)
    messages = ring_messages(MISTAKES, trial, x.size, x.itemsize, times=2, to_the_right=False)
    trial.require(
        *messages[:2],
        lambda: summed(got, x, parts, trial),
        lambda: only_there(base, numbers[trial.rank], form, x),
        lambda: nothing_returned(got),
        *messages[2:],
    )


def summed(got: Any, x: np.ndarray, parts: list[np.ndarray], trial: Trial) -> Finding | None:
    right = sum(parts)
    if x.shape != right.shape:
        return MISTAKES.shape_changed(got=x.shape, right=right.shape)
    if same(x, right):
        return None
    if same(x, parts[trial.rank]) and trial.receives(trial.rank):
        if isinstance(got, np.ndarray) and same(got, right):
            return MISTAKES.returned_only()
        in_order = x.flags.c_contiguous
        return MISTAKES.not_in_place() if in_order else MISTAKES.copy_not_written_back()
    if x.size > 1 and np.array_equal(np.sort(x, axis=None), np.sort(right, axis=None)):
        return MISTAKES.other_order()
    if same(x.ravel("K"), sum(part.ravel("K") for part in parts)):
        return MISTAKES.memory_order()
    flat, flat_parts = x.reshape(-1), [part.reshape(-1) for part in parts]
    return (
        one_chunk_alone(flat, sum(flat_parts), trial)
        or in_first_wrong_chunk(flat, flat_parts)
        or equal(x, right, "`x`")
    )


def wrong_chunks(flat: np.ndarray, right: np.ndarray, parts: int) -> list[int]:
    chunks = [chunk(len(flat), index, parts) for index in range(parts)]
    return [index for index, c in enumerate(chunks) if not same(flat[c], right[c])]


def one_chunk_alone(flat: np.ndarray, right: np.ndarray, trial: Trial) -> Finding | None:
    wrong = wrong_chunks(flat, right, trial.size)
    if trial.size < 3 or len(flat) < trial.size or len(wrong) != trial.size - 1:
        return None
    if len(trial.sends(trial.rank)) > trial.size - 1:
        return None  # there was more than a reduce-scatter
    (complete,) = {*range(trial.size)} - {*wrong}
    return MISTAKES.only_reduce_scatter(chunk=complete)


def in_first_wrong_chunk(flat: np.ndarray, parts: list[np.ndarray]) -> Finding | None:
    right = sum(parts)
    if same(flat, (right / len(parts)).astype(right.dtype)):
        return MISTAKES.mean(name="`x`")
    first = wrong_chunks(flat, right, len(parts))[0]
    here = chunk(len(flat), first, len(parts))
    name = f"chunk {first} of `x`"
    return wrong_sum(MISTAKES, flat[here], [part[here] for part in parts], name)


def only_there(base: np.ndarray, before: np.ndarray, form: Form, x: np.ndarray) -> Finding | None:
    """What is not in `x`, of the array that it is a part of, is as before."""
    expected = before.copy()
    form(expected)[...] = x
    return None if same(base, expected) else MISTAKES.between_its_elements()
