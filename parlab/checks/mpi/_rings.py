"""Inputs of the three ring exercises, and requirements on the messages of a ring."""

from typing import Any

import numpy as np

from parlab.checks.base.messages import of_bytes, rounds_of
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Requirement, Trial
from parlab.chunks import chunk
from parlab.runtime.rank_names import ranks_text

RING = {
    "other_destination": ("rank {rank} sends to rank {got}. On the ring, it sends only to {right}"),
    "more_than_a_chunk": (
        "rank {rank} sends {got} bytes in one message, but the longest chunk has {right}. In each "
        "round, send one chunk in the dtype of `x`"
    ),
    "one_after_the_other": (
        "the messages pass one after the other, in {got} rounds instead of {right}. In each round, "
        "let all ranks send at the same time"
    ),
}


def lengths(trial: Trial) -> list[int]:
    """Return a multiple of the number of ranks, a length with an empty chunk, 0, and an uneven one.

    The longest one is last, because the playground shows the messages of the last case.
    """
    size, draw = trial.size, trial.draw
    multiple, uneven = size * draw.randrange(2, 6), size * draw.randrange(5, 9) + 1
    return [multiple, size - 1, 0, uneven]


def vectors(trial: Trial) -> dict[str, tuple[int, Any]]:
    """Return cases of (length, dtype)."""
    dtypes = (np.float64, np.int64, np.float32, np.float32)
    pairs = zip(lengths(trial), dtypes, strict=True)
    return {f"{n} elements of {np.dtype(dtype)}": (n, dtype) for n, dtype in pairs}


def ring_messages(
    mistakes: Mistakes, trial: Trial, x: np.ndarray, left_out: int | None = None
) -> list[Requirement]:
    """Require messages of one chunk of `x` each, to a neighbor, from all ranks at once.

    Args:
        left_out: a rank sends each chunk to the right, except for chunk `rank + left_out`. None
            for an all-reduce, which sends twice as many messages, and may use any chunks.
    """
    all_reduce = left_out is None
    rounds = (trial.size - 1) * (2 if all_reduce else 1)
    sizes = [x[chunk(len(x), i, trial.size)].nbytes for i in range(trial.size)]
    return [
        lambda: sent_to_neighbors(mistakes, trial, both=all_reduce),
        lambda: one_chunk_each(mistakes, trial, sizes, rounds),
        lambda: (
            enough_sent(trial, sizes) if all_reduce else every_chunk_but(trial, sizes, left_out)
        ),
        lambda: sent_at_once(mistakes, trial, rounds),
    ]


def sent_to_neighbors(mistakes: Mistakes, trial: Trial, both: bool) -> Finding | None:
    for rank in range(trial.size):
        right, left = (rank + 1) % trial.size, (rank - 1) % trial.size
        allowed = {right, left} if both else {right}
        neighbors = ranks_text(sorted(allowed)) if both else f"its right neighbor, rank {right}"
        for call in trial.sends(rank):
            if call.to not in allowed:
                return mistakes.other_destination(rank=rank, got=call.to, right=neighbors)
    return None


def one_chunk_each(
    mistakes: Mistakes, trial: Trial, sizes: list[int], rounds: int
) -> Finding | None:
    for rank in range(trial.size):
        sent = [call.bytes_sent for call in trial.sends(rank)]
        if max(sent, default=0) > max(sizes):
            return mistakes.more_than_a_chunk(rank=rank, got=max(sent), right=max(sizes))
        if len(sent) > rounds:
            return observed(f"rank {rank} sends {len(sent)} messages, expected at most {rounds}")
        if other := set(sent) - {0, *sizes}:
            return observed(
                f"rank {rank} sends a message of {min(other)} bytes, the chunks have {sizes}"
            )
    return None


def enough_sent(trial: Trial, sizes: list[int]) -> Finding | None:
    """Require as many bytes as any algorithm needs to sum the data on all ranks.

    Bytes that do not travel over the communicator are not counted.
    """
    got = sum(trial.bytes_sent(rank) for rank in range(trial.size))
    least = 2 * (trial.size - 1) * sum(sizes)
    if got >= least:
        return None
    if not got:
        return COMMON.nothing_sent()
    return observed(
        f"the ranks send {got} bytes in all through `comm`, expected {least}: every chunk "
        f"2(N−1) = {2 * (trial.size - 1)} times"
    )


def every_chunk_but(trial: Trial, sizes: list[int], left_out: int) -> Finding | None:
    """Require that each other chunk is sent once. Empty chunks may be left out."""
    for rank in range(trial.size):
        omitted = (rank + left_out) % trial.size
        right = sorted(size for i, size in enumerate(sizes) if size and i != omitted)
        got = sorted(call.bytes_sent for call in trial.sends(rank) if call.bytes_sent)
        if got != right:
            return observed(
                f"rank {rank} sends {of_bytes(got)}, expected {of_bytes(right)}: every chunk but "
                f"chunk {omitted}, without padding"
            )
    return None


def sent_at_once(mistakes: Mistakes, trial: Trial, rounds: int) -> Finding | None:
    """Allow ranks to take turns: two turns per round, or three if the number of ranks is odd."""
    taken = rounds_of(trial)
    if taken is not None and taken > rounds * (3 if trial.size % 2 else 2):
        return mistakes.one_after_the_other(got=taken, right=rounds)
    return None
