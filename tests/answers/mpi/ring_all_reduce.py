"""Answers to `ring_all_reduce`."""

import numpy as np
from mpi4py import MPI

from parlab.answers import Answers
from parlab.chunks import chunk

answers = Answers("ring_all_reduce")
reduce_scatter = answers.reference("ring_reduce_scatter")
all_gather = answers.reference("ring_all_gather")

FLAT = "flat = np.ascontiguousarray(x).reshape(-1)"
BACK = "x[...] = flat.reshape(x.shape)"
GATHER = "    ring_all_gather(flat, comm)\n"

answers.edit("copy_not_written_back", "copy_forgotten", (BACK, "pass"))
answers.edit("raises", "strided_memory", (FLAT, "flat = x.reshape(-1)"))
answers.edit(
    "mean",
    "divided",
    (BACK, "pass"),
    (GATHER, GATHER + "    x[...] = (flat / comm.size).reshape(x.shape)\n"),
)
answers.edit("only_reduce_scatter", "half_of_it", (GATHER, ""))
answers.edit("numbers_missing", "only_all_gather", ("    ring_reduce_scatter(flat, comm)\n", ""))
answers.edit("too_many_messages", "twice_gathered", (GATHER, GATHER * 2))
answers.edit("other_order", "transposed_back", (BACK, "x[...] = flat.reshape(x.shape[::-1]).T"))
answers.edit("numbers_twice", "added_to_itself", (GATHER, GATHER + "    flat += flat\n"))
answers.edit(
    "returns_something",
    "says_how_it_went",
    (GATHER, GATHER + "    x[...] = flat.reshape(x.shape)\n    return True\n"),
)
answers.edit(
    "not_a_number",
    "nan_for_the_sum",
    (GATHER, GATHER + "    flat = flat * (float('nan') if flat.dtype.kind == 'f' else 1)\n"),
    (BACK, "x[...] = flat.reshape(x.shape)"),
)


@answers.wrong("returned_only")
def in_a_new_array(x, comm):
    flat = x.flatten()
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    return flat.reshape(x.shape)


@answers.wrong("not_in_place")
def under_the_same_name(x, comm):
    flat = x.flatten()
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    x = flat.reshape(x.shape)


@answers.wrong("memory_order")
def neighbours_in_memory(x, comm):
    flat = x.ravel(order="K")
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    if not np.shares_memory(x, flat):
        x[...] = flat.reshape(x.shape)


@answers.wrong("more_than_a_chunk")
def in_doubles(x, comm):
    flat = x.astype(np.float64 if x.dtype.kind == "f" else np.int64).reshape(-1)
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    x[...] = flat.reshape(x.shape)


@answers.wrong("between_its_elements")
def everything_beneath_it(x, comm):
    base = x
    while base.base is not None:
        base = base.base
    flat = x.flatten()
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    base *= 2
    x[...] = flat.reshape(x.shape)


@answers.wrong("more_than_a_chunk")
def everything_to_everybody(x, comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    passing = x.flatten()
    total = passing.copy()
    for _ in range(comm.size - 1):
        incoming = np.empty_like(passing)
        comm.Sendrecv(passing, dest=right, recvbuf=incoming, source=left)
        total += incoming
        passing = incoming
    x[...] = total.reshape(x.shape)


@answers.wrong("uneven_chunks")
def by_rows(x, comm):
    # len(x) is not the number of elements.
    if x.ndim == 0:
        return answers.reference()(x, comm)
    work, rank, size = x.copy(order="C"), comm.rank, comm.size
    for step in range(2 * (size - 1)):
        into = work[chunk(len(x), rank - 2 - step, size)]
        came = np.empty_like(into, order="C")
        comm.Sendrecv(
            work[chunk(len(x), rank - 1 - step, size)],
            dest=(rank + 1) % size,
            recvbuf=came,
            source=(rank - 1) % size,
        )
        into[...] = into + came if step < size - 1 else came
    x[...] = work
    return None


@answers.wrong("library")
def by_the_library(x, comm):
    flat = x.flatten()
    comm.Allreduce(MPI.IN_PLACE, flat)
    x[...] = flat.reshape(x.shape)


@answers.wrong("other_destination")
def through_one_rank(x, comm):
    flat = x.flatten()
    if comm.rank == 0:
        incoming = np.empty_like(flat)
        for source in range(1, comm.size):
            comm.Recv(incoming, source=source)
            flat += incoming
        for dest in range(1, comm.size):
            comm.Send(flat, dest=dest)
    else:
        comm.Send(flat, dest=0)
        comm.Recv(flat, source=0)
    x[...] = flat.reshape(x.shape)


@answers.wrong("foreign_bytes")
def x_never_put_into_the_work_space(x, comm):
    flat = np.full(x.size, 2**50, x.dtype)  # np.empty brings whatever the memory held
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    x[...] = flat.reshape(x.shape)


@answers.wrong("one_after_the_other")
def one_rank_receives_first(x, comm):
    flat, rank, size = x.flatten(), comm.rank, comm.size
    for step in range(2 * (size - 1)):
        outgoing = flat[chunk(len(flat), rank - 1 - step, size)]
        into = flat[chunk(len(flat), rank - 2 - step, size)]
        came = np.empty_like(into)
        if rank == 0:
            comm.Recv(came, source=(rank - 1) % size)
            comm.Send(outgoing, dest=(rank + 1) % size)
        else:
            comm.Send(outgoing, dest=(rank + 1) % size)
            comm.Recv(came, source=(rank - 1) % size)
        into[...] = into + came if step < size - 1 else came
    x[...] = flat.reshape(x.shape)


def around(x, comm, out, direction=1):
    """All 2(N−1) rounds in one loop; the first chunk that a rank sends is `out` from its own."""
    flat, rank, size = x.flatten(), comm.rank, comm.size
    for step in range(2 * (size - 1)):
        outgoing = flat[chunk(len(flat), rank + direction * (out - step), size)]
        into = flat[chunk(len(flat), rank + direction * (out - 1 - step), size)]
        came = np.empty_like(into)
        to, source = (rank + direction) % size, (rank - direction) % size
        comm.Sendrecv(outgoing, to, recvbuf=came, source=source)
        into[...] = into + came if step < size - 1 else came
    x[...] = flat.reshape(x.shape)


@answers.right
def in_one_loop(x, comm):
    around(x, comm, -1)


@answers.right
def with_its_own_chunk_first(x, comm):
    around(x, comm, 0)


@answers.right
def to_the_left(x, comm):
    around(x, comm, 0, direction=-1)


@answers.right
def always_in_a_copy(x, comm):
    flat = x.flatten()
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    np.copyto(x, flat.reshape(x.shape))


@answers.right
def padded_to_a_multiple(x, comm):
    size = comm.size
    padded = np.zeros(-(-x.size // size) * size, x.dtype)
    padded[: x.size] = x.flat
    reduce_scatter(padded, comm)
    all_gather(padded, comm)
    x.flat = padded[: x.size]


@answers.right
def returned_as_well(x, comm):
    answers.reference()(x, comm)
    return x


@answers.wrong("shape_changed")
def made_flat_for_good(x, comm):
    if x.flags.c_contiguous:
        x.shape = (-1,)
    answers.reference()(x, comm)
