"""Answers to `ring_reduce_scatter`."""

import numpy as np
from mpi4py import MPI

from parlab.answers import Answers
from parlab.chunks import chunk

answers = Answers("ring_reduce_scatter")

SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"
OUT, INTO = "rank - 1 - step", "rank - 2 - step"
RETURN = "return x[chunk(len(x), rank, size)]"

answers.edit(
    "other_chunk",
    "next_chunk",
    (OUT, "rank - step"),
    (INTO, "rank - 1 - step"),
    (RETURN, "return x[chunk(len(x), rank + 1, size)]"),
)
answers.edit(
    "complete_elsewhere",
    "own_chunk_before_its_sum",
    (OUT, "rank - step"),
    (INTO, "rank - 1 - step"),
)
answers.edit("numbers_missing", "one_round_too_few", ("range(size - 1)", "range(size - 2)"))
answers.edit("too_many_messages", "one_round_too_many", ("range(size - 1)", "range(size)"))
answers.edit(
    "numbers_missing", "overwrites", ("partial_sum += incoming", "partial_sum[:] = incoming")
)
answers.edit(
    "numbers_missing",
    "adds_to_another",
    ("partial_sum += incoming", "partial_sum = partial_sum + incoming"),
)
answers.edit(
    None,
    "doubles_what_arrives",
    ("partial_sum += incoming", "partial_sum += 2 * incoming"),
    says="at index 0",
)
answers.edit(
    "numbers_twice",
    "added_to_itself",
    (RETURN, "mine = x[chunk(len(x), rank, size)]\n    mine += mine\n    return mine"),
    says="more than once",
)
answers.edit("returns_none", "nothing_returned", (RETURN, ""))
answers.edit("wrong_shape", "whole_returned", (RETURN, "return x"))
answers.edit("a_copy", "copy_returned", (RETURN, RETURN + ".copy()"))
answers.edit(
    "mean",
    "divided",
    (RETURN, "mine = x[chunk(len(x), rank, size)]\n    mine[...] = mine / size\n    return mine"),
)
answers.edit(
    "foreign_bytes",
    "float64_buffer",
    ("np.empty_like(x[chunk(len(x), 0, size)])", "np.empty(len(x) // size + 1)"),
)
answers.edit(
    "other_destination",
    "the_other_way",
    (OUT, "rank + 1 + step"),
    (INTO, "rank + 2 + step"),
    (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
)
answers.edit("not_a_number", "nothing_but_nan", (RETURN, RETURN + " * float('nan')"))
answers.edit(
    "does_not_end",
    "the_labs_rank",
    ("def ring", "from parlab.rank import rank, world_size\n\n\ndef ring"),
    ("rank, size = comm.rank, comm.size", "size = world_size"),
    says="reads the global `rank`",
)
answers.edit("library", "reduced_by_the_library", (RETURN, "return comm.reduce(x)"))


@answers.wrong("wrong_shape")
def even_chunks(x, comm):
    rank, size = comm.rank, comm.size
    length = len(x) // size
    right, left = (rank + 1) % size, (rank - 1) % size
    incoming = np.empty(length, dtype=x.dtype)
    for step in range(size - 1):
        start = (rank - 1 - step) % size * length
        comm.Sendrecv(x[start : start + length], dest=right, recvbuf=incoming, source=left)
        start = (rank - 2 - step) % size * length
        x[start : start + length] += incoming
    return x[rank * length : (rank + 1) * length]


@answers.wrong("library")
def all_reduced_by_the_library(x, comm):
    comm.Allreduce(MPI.IN_PLACE, x)
    return x[chunk(len(x), comm.rank, comm.size)]


@answers.wrong("does_not_end", says="All wait to send")
def send_first(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        comm.Send(x[chunk(len(x), rank - 1 - step, size)], dest=(rank + 1) % size)
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        comm.Recv(incoming, source=(rank - 1) % size)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]


@answers.wrong("one_after_the_other")
def one_rank_receives_first(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        if rank == 0:
            comm.Recv(incoming, source=left)
            comm.Send(outgoing, dest=right)
        else:
            comm.Send(outgoing, dest=right)
            comm.Recv(incoming, source=left)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]


@answers.wrong("other_destination")
def straight_to_the_owner(x, comm):
    rank, size = comm.rank, comm.size
    mine = x[chunk(len(x), rank, size)]
    incoming = np.empty_like(mine)
    for distance in range(1, size):
        dest, source = (rank + distance) % size, (rank - distance) % size
        outgoing = x[chunk(len(x), dest, size)]
        comm.Sendrecv(outgoing, dest=dest, recvbuf=incoming, source=source)
        mine += incoming
    return mine


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


@answers.wrong("uneven_chunks")
def rounded_up_chunks(x, comm):
    # Chunks of a length rounded up, and one element more so that it is never too short.
    rank, size = comm.rank, comm.size
    long = -(-len(x) // size) + 1
    padded = np.zeros((size, long), x.dtype)
    for index in range(size):
        part = x[chunk(len(x), index, size)]
        padded[index, : len(part)] = part
    incoming = np.empty_like(padded[0])
    for step in range(size - 1):
        comm.Sendrecv(
            padded[(rank - 1 - step) % size],
            dest=(rank + 1) % size,
            recvbuf=incoming,
            source=(rank - 1) % size,
        )
        padded[(rank - 2 - step) % size] += incoming
    mine = x[chunk(len(x), rank, size)]
    mine[...] = padded[rank, : len(mine)]
    return mine


@answers.wrong("not_in_x")
def in_a_work_space_of_its_own(x, comm):
    return answers.reference()(x.copy(), comm)


@answers.wrong("pickles")
def as_objects(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        came = comm.sendrecv(outgoing, dest=(rank + 1) % size, source=(rank - 1) % size)
        x[chunk(len(x), rank - 2 - step, size)] += came
    return x[chunk(len(x), rank, size)]


@answers.wrong("no_wait")
def isend_without_wait(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        comm.Isend(x[chunk(len(x), rank - 1 - step, size)], dest=(rank + 1) % size)
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        comm.Recv(incoming, source=(rank - 1) % size)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]


@answers.right
def isend_and_receive(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        sent = comm.Isend(x[chunk(len(x), rank - 1 - step, size)], dest=(rank + 1) % size)
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        comm.Recv(incoming, source=(rank - 1) % size)
        sent.Wait()
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]


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
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming, requests = np.empty_like(partial_sum), []
        if incoming.size:
            requests.append(comm.Irecv(incoming, source=(rank - 1) % size))
        if outgoing.size:
            requests.append(comm.Isend(outgoing, dest=(rank + 1) % size))
        MPI.Request.Waitall(requests)
        partial_sum += incoming
    return x[chunk(len(x), rank, size)]


@answers.right
def even_ranks_send_first(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)].copy()
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(partial_sum)
        if rank % 2:
            comm.Recv(incoming, source=left)
        comm.Send(outgoing, dest=right)
        if rank % 2 == 0:
            comm.Recv(incoming, source=left)
        np.add(partial_sum, incoming, out=partial_sum)
    return x[chunk(len(x), rank, size)]


@answers.right
def replaced_on_a_duplicate(x, comm):
    ring = comm.Dup()
    rank, size = ring.rank, ring.size
    longest = -(-len(x) // size)
    travelling = np.zeros(longest, x.dtype)  # a message may be shorter than its buffer
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        partial_sum = x[chunk(len(x), rank - 2 - step, size)]
        sent = ring.Issend(outgoing, (rank + 1) % size, tag=step)
        ring.Recv(travelling, source=(rank - 1) % size, tag=step)
        sent.wait()
        partial_sum += travelling[: len(partial_sum)]
    ring.Free()
    return x[chunk(len(x), rank, size)]


@answers.right
def around_a_periodic_grid(x, comm):
    ring = comm.Create_cart([comm.size], periods=[True])
    left, right = ring.Shift(0, 1)
    for step in range(comm.size - 1):
        outgoing = x[chunk(len(x), comm.rank - 1 - step, comm.size)]
        partial_sum = x[chunk(len(x), comm.rank - 2 - step, comm.size)]
        incoming = np.empty_like(partial_sum)
        ring.Sendrecv(outgoing, right, recvbuf=incoming, source=left)
        partial_sum += incoming
    ring.Free()
    return x[chunk(len(x), comm.rank, comm.size)]
