"""Requirements on the messages of a ring: to whom, how many, of which size, in how many rounds."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from parlab.checks.compare import same
from parlab.checks.messages import no_pickles, only_messages, rounds_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.trial import Requirement, Trial
from parlab.chunks import chunk
from parlab.wording import ranks_text

# Contributions of more ranks than this are not searched for: 3^6 combinations are quick.
SEARCHED_RANKS = 6
DTYPES = (np.float64, np.float32, np.int64)

# What every ring can do wrong. The checks of the three add their own.
RING = {
    "other_destination": (
        "rank {rank} sends to rank {got}: on the ring it sends to its right neighbour alone, rank "
        "{right}"
    ),
    "too_many_messages": "rank {rank} sends {got} messages where {right} are enough",
    "more_than_a_chunk": (
        "rank {rank} sends {got} bytes in one message where a chunk has {right}: in each round "
        "one chunk, in the dtype of `x`, and never more"
    ),
    "uneven_chunks": (
        "rank {rank} sends {got} bytes in one message, and the longest chunk of {length} elements "
        "for {parts} ranks has {right}: cut by elements, so that chunks differ by one at most"
    ),
    "one_after_the_other": (
        "the messages pass one after the other, in {taken} rounds where {least} are enough: all "
        "ranks should send at the same time, in each round"
    ),
}
SUMS = {
    "numbers_missing": "{name} lacks the numbers of {ranks}",
    "numbers_twice": "{name} holds the numbers of {ranks} more than once",
    "mean": "{name} holds the mean: the sum is asked for",
    "foreign_bytes": (
        "{name} at index {index} is {got} where {right} is right, which no sum of the ranks' "
        "numbers can be: memory that nothing was written to looks like that, or bytes read as "
        "another type. MPI converts nothing, so the buffer to receive in needs the dtype of `x`, "
        "here {dtype}"
    ),
}


def lengths(trial: Trial) -> list[int]:
    """One that every rank gets as much of, an uneven one, one shorter than the ring, and none."""
    size, draw = trial.size, trial.draw
    return [size * draw.randrange(2, 6), size * draw.randrange(5, 9) + 1, size - 1, 0]


def chunk_bytes(length: int, parts: int, itemsize: int) -> list[int]:
    slices = (chunk(length, index, parts) for index in range(parts))
    return [(s.stop - s.start) * itemsize for s in slices]


def ring_messages(
    mistakes: Mistakes, trial: Trial, length: int, itemsize: int, times: int, *, to_the_right: bool
) -> list[Requirement]:
    """That a rank sends `times`·(N−1) messages of a chunk at most, to a neighbour, all at once.

    A chunk without elements may be sent, or not. `to_the_right`: to that neighbour alone.
    """
    return [
        lambda: only_messages(trial),
        lambda: no_pickles(trial),
        lambda: to_a_neighbour(mistakes, trial, to_the_right),
        lambda: few_messages(mistakes, trial, times),
        lambda: of_one_chunk(mistakes, trial, length, itemsize),
        lambda: at_once(mistakes, trial, times),
    ]


def to_a_neighbour(mistakes: Mistakes, trial: Trial, to_the_right: bool) -> Finding | None:
    for rank in range(trial.size):
        right, left = (rank + 1) % trial.size, (rank - 1) % trial.size
        allowed = {right} if to_the_right else {right, left}
        for call in trial.sends(rank):
            if call.to not in allowed:
                return mistakes.other_destination(rank=rank, got=call.to, right=right)
    return None


def few_messages(mistakes: Mistakes, trial: Trial, times: int) -> Finding | None:
    enough = times * (trial.size - 1)
    for rank in range(trial.size):
        if (count := len(trial.sends(rank))) > enough:
            return mistakes.too_many_messages(rank=rank, got=count, right=enough)
    return None


def of_one_chunk(mistakes: Mistakes, trial: Trial, length: int, itemsize: int) -> Finding | None:
    chunks = chunk_bytes(length, trial.size, itemsize)
    most = max(chunks)
    wider = {2 * one for one in chunks}  # a right chunk of float32 or int32, sent in 8 bytes each
    whole = length * itemsize
    for rank in range(trial.size):
        for call in trial.sends(rank):
            if call.bytes_sent <= most:
                continue
            # Twice the longest chunk is a choice; between the two lies an uneven cut.
            uneven = call.bytes_sent < min(2 * most, whole) and call.bytes_sent not in wider
            found = mistakes.uneven_chunks if uneven else mistakes.more_than_a_chunk
            values = {"length": length, "parts": trial.size} if uneven else {}
            return found(rank=rank, got=call.bytes_sent, right=most, **values)
    return None


def most_rounds(size: int, times: int) -> int:
    """Where even and odd ranks take turns: two rounds for each, three where the ring is odd."""
    return times * (size - 1) * (3 if size % 2 else 2)


def at_once(mistakes: Mistakes, trial: Trial, times: int) -> Finding | None:
    taken = rounds_of(trial)
    if taken is not None and taken > most_rounds(trial.size, times):
        return mistakes.one_after_the_other(taken=taken, least=times * (trial.size - 1))
    return None


# Whose numbers a sum holds


def wrong_sum(
    mistakes: Mistakes, got: np.ndarray, parts: Sequence[np.ndarray], name: str
) -> Finding | None:
    """What `got` is, of the shape and dtype of the right sum of `parts`, if it is not that."""
    right = sum(parts)
    if same(got, right) or not got.size:
        return None
    if same(got, (right / len(parts)).astype(right.dtype)):
        return mistakes.mean(name=name)
    return contributions(mistakes, got, parts, name) or misread(mistakes, got, right, name)


def contributions(
    mistakes: Mistakes, got: np.ndarray, parts: Sequence[np.ndarray], name: str
) -> Finding | None:
    """Whose numbers `got` adds up, if it is such a sum and not the right one."""
    if len(parts) > SEARCHED_RANKS:
        return None
    for times in product(range(3), repeat=len(parts)):
        if any(times) and same(got, sum(t * part for t, part in zip(times, parts, strict=True))):
            if missing := [rank for rank, t in enumerate(times) if t == 0]:
                return mistakes.numbers_missing(name=name, ranks=ranks_text(missing))
            double = [rank for rank, t in enumerate(times) if t == 2]
            return mistakes.numbers_twice(name=name, ranks=ranks_text(double))
    return None


def misread(mistakes: Mistakes, got: np.ndarray, right: np.ndarray, name: str) -> Finding | None:
    """Where a number is far larger than any sum."""
    far = np.abs(got) > 2**40
    if not far.any():
        return None
    index = int(np.argmax(far))
    return mistakes.foreign_bytes(
        name=name, index=index, got=got[index], right=right[index], dtype=got.dtype
    )
