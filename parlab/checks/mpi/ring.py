"""Exercises `ring_reduce_scatter`, `ring_all_gather` and `ring_all_reduce`."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.base import Check, difference, fresh_seed, random_numbers
from parlab.checks.mpi.trial import Trial, trial, worlds
from parlab.chunks import chunk
from parlab.cluster.report import ranks_text

DTYPES = (np.float64, np.float32, np.int64)
# Contributions of more ranks than this are not searched for: 3^6 combinations are quick.
SEARCHED_RANKS = 6

InPlace = Callable[[np.ndarray, MPI.Intracomm], Any]


def _lengths(draw: Random, size: int) -> list[int]:
    """One that every rank gets as much of, an uneven one, and one shorter than the ring."""
    return [size * draw.randrange(2, 6), size * draw.randrange(5, 9) + 1, max(size - 1, 0)]


# ring_reduce_scatter


def ring_reduce_scatter(function: InPlace) -> None:
    """Check the chunk of the sum on each rank, and what was sent to whom."""
    check = Check("ring_reduce_scatter")
    draw = Random(fresh_seed())
    for ranks in worlds(check, draw):
        for length, dtype in zip(_lengths(draw, len(ranks)), DTYPES, strict=True):
            numbers = random_numbers(draw.getrandbits(32), len(ranks), length, dtype)
            with trial(check, function, ranks) as run:
                _reduce_scatter(run, numbers)
    check.passed(
        f"rank r holds chunk r of the sum on 1 to {check.world_size} ranks, also where chunks "
        "are uneven or empty; N−1 messages a rank, each of one chunk"
    )


def _reduce_scatter(run: Trial, numbers: list[np.ndarray]) -> None:
    run.situation += f", {len(numbers[0])} elements of {numbers[0].dtype}"
    x = numbers[run.rank].copy()
    got = run.run(x)
    run.agree(_own_chunk(got, x, numbers, run.rank) if run.comm is not None else None)
    run.no_pickles()
    ring_neighbours(run)
    # A rank never sends the chunk that ends with it.
    size_of = _chunk_bytes(numbers[0], run.size)
    total = sum(size_of)
    traffic(run, run.size - 1, [total - size_of[rank] for rank in range(run.size)])


def _own_chunk(got: Any, x: np.ndarray, numbers: list[np.ndarray], rank: int) -> str | None:
    length, size = len(x), len(numbers)
    mine = chunk(length, rank, size)
    problem = difference(got, sum(numbers)[mine], f"chunk {rank}")
    if problem is None:
        if np.array_equal(x[mine], got):
            return None
        return "the result is right, but chunk `comm.rank` of `x` itself does not hold it"
    if isinstance(got, np.ndarray) and got.ndim == 1 and len(got):
        for other in range(size):
            if np.array_equal(got, sum(numbers)[chunk(length, other, size)]):
                return (
                    f"it returns chunk {other} of the sum, where chunk {rank} is right: "
                    f"all rounds work on a chunk that is {(other - rank) % size} too far"
                )
        if len(got) == len(numbers[0][mine]):
            added = _contributions(got, [n[mine] for n in numbers], f"chunk {rank}")
            return added or problem + _misread(got)
    return problem


def _misread(got: np.ndarray) -> str:
    """A remark, where no sum of whole numbers can look like that."""
    sensible = np.isfinite(got) & (np.abs(got) < 2**30) & (got == np.round(got))
    if sensible.all():
        return ""
    return (
        f".\nThese are no sums, but bytes read as another type: MPI converts nothing, so the "
        f"buffer to receive in needs the dtype of `x`, here {got.dtype}"
    )


def _contributions(got: np.ndarray, parts: list[np.ndarray], name: str) -> str | None:
    """Whose numbers `got` adds up, if it is such a sum and not the right one."""
    if len(parts) > SEARCHED_RANKS or not len(got):
        return None
    for times in product(range(3), repeat=len(parts)):
        if np.array_equal(got, sum(t * part for t, part in zip(times, parts, strict=True))):
            missing = [r for r, t in enumerate(times) if t == 0]
            double = [r for r, t in enumerate(times) if t == 2]
            said = [f"lacks the numbers of {ranks_text(missing)}"] * bool(missing)
            said += [f"holds those of {ranks_text(double)} twice"] * bool(double)
            return f"{name} {' and '.join(said)}" if said else None
    return None


# ring_all_gather


def ring_all_gather(function: InPlace) -> None:
    """Check that every rank ends with all chunks, and what was sent to whom."""
    check = Check("ring_all_gather")
    draw = Random(fresh_seed())
    for ranks in worlds(check, draw):
        for length, dtype in zip(_lengths(draw, len(ranks)), DTYPES, strict=True):
            whole = random_numbers(draw.getrandbits(32), 1, length, dtype)[0]
            with trial(check, function, ranks) as run:
                _all_gather(run, whole)
    check.passed(
        f"all chunks on every rank, on 1 to {check.world_size} ranks, also where chunks are "
        "uneven or empty; N−1 messages a rank, each of one chunk"
    )


def _all_gather(run: Trial, whole: np.ndarray) -> None:
    run.situation += f", {len(whole)} elements of {whole.dtype}"
    x = np.full_like(whole, -1)
    mine = chunk(len(x), run.rank, run.size)
    x[mine] = whole[mine]
    run.run(x)
    run.agree(_all_chunks(x, whole, run.size) if run.comm is not None else None)
    run.no_pickles()
    ring_neighbours(run)
    # A rank never sends the chunk that its right neighbour began with.
    size_of = _chunk_bytes(whole, run.size)
    total = sum(size_of)
    expected = [total - size_of[(rank + 1) % run.size] for rank in range(run.size)]
    traffic(run, run.size - 1, expected)


def _all_chunks(x: np.ndarray, whole: np.ndarray, size: int) -> str | None:
    for index in range(size):
        here = x[chunk(len(x), index, size)]
        if np.array_equal(here, whole[chunk(len(x), index, size)]):
            continue
        if np.all(here == -1):
            return f"chunk {index} of `x` never arrived: it holds what it held before"
        for other in range(size):
            if np.array_equal(here, whole[chunk(len(x), other, size)]):
                return f"chunk {index} of `x` holds chunk {other}"
    return difference(x, whole, "`x`")


# ring_all_reduce


def ring_all_reduce(function: InPlace) -> None:
    """Check the sum in place for vectors, matrices and arrays with gaps, and what was sent."""
    check = Check("ring_all_reduce")
    draw = Random(fresh_seed())
    for ranks in worlds(check, draw):
        vectors = [(length,) for length in _lengths(draw, len(ranks))]
        # One row more than ranks: chunks of rows would be uneven.
        matrix = (len(ranks) + 1, 2 * draw.randrange(3, 7) + 1)
        forms = [*((shape, False) for shape in vectors), (matrix, False), (matrix, True)]
        for shape, transposed in forms:
            seed, dtype = draw.getrandbits(32), draw.choice(DTYPES)
            numbers = random_numbers(seed, len(ranks), shape, dtype)
            with trial(check, function, ranks) as run:
                run.situation += f", {'a transposed matrix' if transposed else f'shape {shape}'}"
                _all_reduce(run, [n.T for n in numbers] if transposed else numbers)
    check.passed(
        f"the sum in place on 1 to {check.world_size} ranks, for any length and shape; each rank "
        "sends 2(N−1) messages and 2(N−1)/N of the data"
    )


def _all_reduce(run: Trial, numbers: list[np.ndarray]) -> None:
    run.situation += f" of {numbers[0].dtype}"
    x = numbers[run.rank].copy(order="K")
    got = run.run(x)
    run.agree(_summed(got, x, numbers, run.rank) if run.comm is not None else None)
    run.no_pickles()
    ring_neighbours(run)
    size_of = _chunk_bytes(numbers[0], run.size)
    total = 2 * sum(size_of)
    traffic(
        run,
        2 * (run.size - 1),
        [total - size_of[rank] - size_of[(rank + 1) % run.size] for rank in range(run.size)],
    )


def _summed(got: Any, x: np.ndarray, parts: list[np.ndarray], rank: int) -> str | None:
    expected = sum(parts)
    problem = difference(x, expected, "`x`")
    if problem is None:
        return None
    if np.array_equal(x, parts[rank]) and len(parts) > 1:
        if isinstance(got, np.ndarray) and np.array_equal(got, expected):
            return "the result is returned, but `x` is unchanged: the sum belongs in `x` itself"
        if not x.flags.c_contiguous:
            return (
                "`x` is unchanged: its memory has gaps, so that `reshape(-1)` made a copy and "
                "the sum stayed in there"
            )
        return "`x` is unchanged: the sum belongs in `x` itself"
    if np.allclose(x, expected / len(parts), rtol=0, atol=1):
        return "`x` holds the mean: the sum is asked for"
    return _wrong_chunk(x, parts, rank) or problem


def _wrong_chunk(x: np.ndarray, parts: list[np.ndarray], rank: int) -> str | None:
    """Whose numbers are missing in the first wrong chunk of `x`, read as a vector."""
    flat, flat_parts = x.reshape(-1), [part.reshape(-1) for part in parts]
    expected = sum(flat_parts)
    chunks = [chunk(x.size, index, len(parts)) for index in range(len(parts))]
    wrong = [i for i, c in enumerate(chunks) if not np.array_equal(flat[c], expected[c])]
    if len(wrong) == len(parts) - 1 and rank not in wrong:
        return (
            f"of `x` only chunk {rank} holds the sum: after the reduce-scatter every rank still "
            "needs the chunks of the others"
        )
    first = chunks[wrong[0]]
    return _contributions(flat[first], [p[first] for p in flat_parts], f"chunk {wrong[0]} of `x`")


# What all three share


def _chunk_bytes(x: np.ndarray, parts: int) -> list[int]:
    """Bytes of each chunk."""
    slices = (chunk(x.size, index, parts) for index in range(parts))
    return [(s.stop - s.start) * x.itemsize for s in slices]


def ring_neighbours(run: Trial) -> None:
    """Fail where a rank sends to another than the next, or receives from another than the last."""
    for rank in range(run.size):
        right, left = (rank + 1) % run.size, (rank - 1) % run.size
        for step in run.programs()[rank]:
            if step.to not in (None, right):
                run.fail(
                    f"rank {rank} sends to rank {step.to}: on the ring it sends to its right "
                    f"neighbour alone, rank {right}"
                )
            if step.source not in (None, left, MPI.ANY_SOURCE):
                run.fail(
                    f"rank {rank} receives from rank {step.source}: on the ring it receives from "
                    f"its left neighbour alone, rank {left}"
                )


def traffic(run: Trial, messages: int, expected: list[int]) -> None:
    """Fail where a rank sends more bytes than `expected[rank]`, or more messages."""
    for rank in range(run.size):
        sent, count = run.bytes_sent(rank), len(run.sends(rank))
        if count > messages:
            run.fail(f"rank {rank} sends {count} messages where {messages} are enough")
        if sent == expected[rank]:
            continue
        wrong = f"rank {rank} sends {sent} bytes where {expected[rank]} are right"
        if sum(map(run.bytes_sent, range(run.size))) == sum(expected):
            run.fail(
                f"{wrong}, although all ranks together send what they should: the chunks are not "
                "even. Cut by elements, not by rows"
            )
        run.fail(f"{wrong}: in each round one chunk, and never more")
