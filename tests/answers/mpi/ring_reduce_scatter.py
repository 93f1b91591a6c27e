"""Answers to `ring_reduce_scatter`."""

import numpy as np
from mpi4py import MPI

from parlab.chunks import chunk
from parlab_staff.answers import Answers

answers = Answers("ring_reduce_scatter")

SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"
OUT, INTO = "rank - 1 - step", "rank - 2 - step"
RETURN = "return x[chunk(len(x), rank, size)]"

answers.edit(
    "next_chunk",
    "next_chunk",
    (OUT, "rank - step"),
    (INTO, "rank - 1 - step"),
    (RETURN, "return x[chunk(len(x), rank + 1, size)]"),
)
answers.edit("overwritten", "overwrites", ("partial_sum += incoming", "partial_sum[:] = incoming"))
answers.edit(
    "not_added",
    "adds_to_another",
    ("partial_sum += incoming", "partial_sum = partial_sum + incoming"),
)
answers.edit(
    None,
    "added_to_itself",
    (RETURN, "mine = x[chunk(len(x), rank, size)]\n    mine += mine\n    return mine"),
)
answers.edit("returns_none", "nothing_returned", (RETURN, ""))
answers.edit("wrong_shape", "whole_returned", (RETURN, "return x"))
answers.edit("a_copy", "copy_returned", (RETURN, RETURN + ".copy()"))
answers.edit(
    "other_destination",
    "the_other_way",
    (OUT, "rank + 1 + step"),
    (INTO, "rank + 2 + step"),
    (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
)
answers.edit(
    "does_not_end",
    "the_labs_rank",
    ("def ring", "from parlab.rank import rank, world_size\n\n\ndef ring"),
    ("rank, size = comm.rank, comm.size", "size = world_size"),
    says="reads the global `rank`",
)


@answers.wrong("library")
def all_reduced_by_the_library(x, comm):
    comm.Allreduce(MPI.IN_PLACE, x)
    return x[chunk(len(x), comm.rank, comm.size)]


def around(x, comm, exchange):
    """Run all rounds; `exchange(outgoing, incoming, right, left)` sends and receives."""
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        exchange(outgoing, incoming, (rank + 1) % size, (rank - 1) % size)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]


def in_turn(comm, send_first):
    def exchange(outgoing, incoming, right, left):
        if send_first:
            comm.Send(outgoing, dest=right)
        comm.Recv(incoming, source=left)
        if not send_first:
            comm.Send(outgoing, dest=right)

    return exchange


@answers.wrong("one_after_the_other")
def one_rank_receives_first(x, comm):
    return around(x, comm, in_turn(comm, send_first=comm.rank > 0))


@answers.wrong("more_than_a_chunk")
def whole_array(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    passing, incoming = x.copy(), np.empty_like(x)
    for _ in range(size - 1):
        comm.Sendrecv(passing, dest=right, recvbuf=incoming, source=left)
        x += incoming
        passing, incoming = incoming, passing
    return x[chunk(len(x), rank, size)]


@answers.wrong(None, says="without padding")
def padded_to_the_longest_chunk(x, comm):
    rank, size = comm.rank, comm.size
    work = np.zeros((size, -(-len(x) // size)), x.dtype)
    for part, row in zip(np.array_split(x, size), work, strict=True):
        row[: len(part)] = part
    incoming = np.empty_like(work[0])
    for step in range(size - 1):
        outgoing = work[(rank - 1 - step) % size]
        comm.Sendrecv(outgoing, (rank + 1) % size, recvbuf=incoming, source=(rank - 1) % size)
        work[(rank - 2 - step) % size] += incoming
    own = x[chunk(len(x), rank, size)]
    own[...] = work[rank, : len(own)]
    return own


@answers.right
def array_split_and_a_travelling_sum(x, comm):
    # The sum travels in an array beside x; only the own chunk is written.
    rank, size = comm.rank, comm.size
    parts = np.array_split(x, size)
    travelling = parts[rank - 1].copy()
    for step in range(size - 1):
        came = np.empty_like(parts[(rank - 2 - step) % size])
        comm.Sendrecv(travelling, (rank + 1) % size, recvbuf=came, source=(rank - 1) % size)
        travelling = came + parts[(rank - 2 - step) % size]
    if size > 1:
        parts[rank][...] = travelling
    return parts[rank]


@answers.right
def empty_chunks_are_not_sent(x, comm):
    def exchange(outgoing, incoming, right, left):
        requests = [comm.Irecv(incoming, source=left)] if incoming.size else []
        requests += [comm.Isend(outgoing, dest=right)] if outgoing.size else []
        MPI.Request.Waitall(requests)

    return around(x, comm, exchange)


@answers.right
def even_ranks_send_first(x, comm):
    return around(x, comm, in_turn(comm, send_first=comm.rank % 2 == 0))


@answers.right
def isend_and_receive(x, comm):
    def exchange(outgoing, incoming, right, left):
        sent = comm.Isend(outgoing, dest=right)
        comm.Recv(incoming, source=left)
        sent.Wait()

    return around(x, comm, exchange)


@answers.right
def on_a_periodic_grid(x, comm):
    ring = comm.Create_cart([comm.size], periods=[True])
    left, right = ring.Shift(0, 1)
    sum_of_chunk = around(x, comm, lambda out, into, *_: ring.Sendrecv(out, right, 0, into, left))
    ring.Free()
    return sum_of_chunk


@answers.wrong("changed_before_wait")
def one_buffer_for_all_sends(x, comm):
    rank, size = comm.rank, comm.size
    buffer, sent = np.empty(len(x) // size + 1, x.dtype), []
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        buffer[: len(outgoing)] = outgoing
        sent.append(comm.Isend(buffer[: len(outgoing)], dest=(rank + 1) % size))
        comm.Recv(incoming, source=(rank - 1) % size)
        partial_sum += incoming
    MPI.Request.Waitall(sent)
    return x[chunk(len(x), rank, size)]
