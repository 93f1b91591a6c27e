"""Answers to `ring_all_reduce`."""

import numpy as np
from mpi4py import MPI

from parlab.chunks import chunk
from parlab_staff.answers import Answers

answers = Answers("ring_all_reduce")
reduce_scatter = answers.reference("ring_reduce_scatter")
all_gather = answers.reference("ring_all_gather")


def summed(flat, comm):
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    return flat


FLAT = "flat = np.ascontiguousarray(x).reshape(-1)"
BACK = "x[...] = flat.reshape(x.shape)"
GATHER = "    ring_all_gather(flat, comm)\n"

answers.edit("copy_not_written_back", "copy_forgotten", (BACK, "pass"))
answers.edit("raises", "strided_memory", (FLAT, "flat = x.reshape(-1)"))
answers.edit(
    None,
    "divided",
    (BACK, "pass"),
    (GATHER, GATHER + "    x[...] = (flat / comm.size).reshape(x.shape)\n"),
)
answers.edit("only_reduce_scatter", "half_of_it", (GATHER, ""))
answers.edit(None, "only_all_gather", ("    ring_reduce_scatter(flat, comm)\n", ""))
answers.edit(None, "transposed_back", (BACK, "x[...] = flat.reshape(x.shape[::-1]).T"))
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


@answers.wrong("not_in_place")
def in_a_new_array(x, comm):
    return summed(x.flatten(), comm).reshape(x.shape)


@answers.wrong(None)
def neighbors_in_memory(x, comm):
    flat = summed(x.ravel(order="K"), comm)
    if not np.shares_memory(x, flat):
        x[...] = flat.reshape(x.shape)


@answers.wrong("more_than_a_chunk")
def in_doubles(x, comm):
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    x[...] = summed(wide.reshape(-1), comm).reshape(x.shape)


@answers.wrong(None, says="expected")
def in_singles(x, comm):
    x[...] = summed(x.astype(np.float32).reshape(-1), comm).reshape(x.shape)


@answers.wrong(None, says="expected")
def in_whole_numbers(x, comm):
    x[...] = summed(x.astype(np.int64).reshape(-1), comm).reshape(x.shape)


@answers.wrong("argument_changed")
def everything_beneath_it(x, comm):
    base = x
    while base.base is not None:
        base = base.base
    total = summed(x.flatten(), comm)
    base *= 2
    x[...] = total.reshape(x.shape)


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


def around(x, comm, out, direction=1, exchange=None, chunk=chunk):
    """Run all rounds in one loop; the first chunk that a rank sends is `rank + out`."""
    flat, rank, size = x.flatten(), comm.rank, comm.size
    for step in range(2 * (size - 1)):
        outgoing = flat[chunk(len(flat), rank + direction * (out - step), size)]
        into = flat[chunk(len(flat), rank + direction * (out - 1 - step), size)]
        came = np.empty_like(into)
        to, source = (rank + direction) % size, (rank - direction) % size
        if exchange is None:
            comm.Sendrecv(outgoing, to, recvbuf=came, source=source)
        else:
            exchange(outgoing, to, came, source)
        into[...] = into + came if step < size - 1 else came
    x[...] = flat.reshape(x.shape)


@answers.wrong("one_after_the_other")
def one_rank_receives_first(x, comm):
    def exchange(outgoing, to, came, source):
        if comm.rank:
            comm.Send(outgoing, to)
        comm.Recv(came, source)
        if not comm.rank:
            comm.Send(outgoing, to)

    around(x, comm, -1, exchange=exchange)


@answers.wrong(None, says="the chunks have")
def last_chunk_much_shorter(x, comm):
    """Cuts as `torch.chunk` does."""

    def chunk(length, index, parts):
        size, index = -(-length // parts), index % parts
        return slice(index * size, (index + 1) * size)

    around(x, comm, -1, chunk=chunk)


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
def padded_to_a_multiple(x, comm):
    size = comm.size
    padded = np.zeros(-(-x.size // size) * size, x.dtype)
    padded[: x.size] = x.flat
    x.flat = summed(padded, comm)[: x.size]


@answers.right
def returned_as_well(x, comm):
    answers.reference()(x, comm)
    return x


@answers.wrong("wrong_shape")
def made_flat_for_good(x, comm):
    if x.flags.c_contiguous:
        x.shape = (-1,)
    answers.reference()(x, comm)


@answers.wrong("nothing_sent")
def around_the_watched_methods(x, comm):
    whole = np.array(x)
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, whole)
    x[...] = whole


@answers.wrong(None, says="the ranks send")
def half_of_it_seen(x, comm):
    flat = np.ascontiguousarray(x).reshape(-1)
    answers.reference("ring_reduce_scatter")(flat, comm)
    answers.reference("ring_all_gather")(flat, MPI.Intracomm(comm).Dup())
    x[...] = flat.reshape(x.shape)
