"""Answers to `ring_all_gather`."""

import numpy as np
from mpi4py import MPI

from parlab.chunks import chunk
from parlab_staff.answers import Answers

answers = Answers("ring_all_gather")

INTO = "rank - step - 1"
SENDRECV = "comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)"

answers.edit("never_arrived", "one_round_too_few", ("range(size - 1)", "range(size - 2)"))
answers.edit(None, "one_round_too_many", ("range(size - 1)", "range(size)"))
answers.edit(
    None,
    "counts_in_the_wrong_direction",
    ("rank - step, size", "rank + step, size"),
    (INTO, "rank + step + 1"),
)
answers.edit(
    "other_destination",
    "the_other_way",
    ("rank - step, size", "rank + step, size"),
    (INTO, "rank + step + 1"),
    (SENDRECV, "comm.Sendrecv(outgoing, dest=left, recvbuf=incoming, source=right)"),
)
answers.edit(
    "not_in_place",
    "into_another_array",
    ("rank, size = comm.rank, comm.size", "x = x.copy()\n    rank, size = comm.rank, comm.size"),
)
answers.edit("returns_something", "says_how_it_went", (SENDRECV, SENDRECV + "\n    return size"))


@answers.wrong("library")
def by_the_library(x, comm):
    chunks = comm.allgather(x[chunk(len(x), comm.rank, comm.size)])
    x[:] = np.concatenate(chunks)


@answers.wrong("more_than_a_chunk")
def whole_array(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    incoming = np.empty_like(x)
    for step in range(size - 1):
        comm.Sendrecv(x, dest=right, recvbuf=incoming, source=left)
        arrived = chunk(len(x), rank - step - 1, size)
        x[arrived] = incoming[arrived]


@answers.wrong("one_after_the_other")
def one_rank_receives_first(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - step, size)]
        incoming = x[chunk(len(x), rank - step - 1, size)]
        if rank == 0:
            comm.Recv(incoming, source=(rank - 1) % size)
            comm.Send(outgoing, dest=(rank + 1) % size)
        else:
            comm.Send(outgoing, dest=(rank + 1) % size)
            comm.Recv(incoming, source=(rank - 1) % size)


@answers.wrong("does_not_end", says="wait in a receive")
def all_receive_first(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        comm.Recv(x[chunk(len(x), rank - step - 1, size)], source=(rank - 1) % size)
        comm.Send(x[chunk(len(x), rank - step, size)], dest=(rank + 1) % size)


@answers.right
def receive_posted_first(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        came = comm.Irecv(x[chunk(len(x), rank - step - 1, size)], source=(rank - 1) % size)
        comm.Send(x[chunk(len(x), rank - step, size)], dest=(rank + 1) % size)
        came.Wait()


@answers.right
def travelling_chunk_in_an_array_of_its_own(x, comm):
    rank, size = comm.rank, comm.size
    longest = -(-len(x) // size)
    travelling, came = np.zeros((2, longest), x.dtype)
    own = chunk(len(x), rank, size)
    travelling[: own.stop - own.start] = x[own]
    for step in range(1, size):
        there, here = chunk(len(x), rank - step + 1, size), chunk(len(x), rank - step, size)
        comm.Sendrecv(
            travelling[: there.stop - there.start],
            dest=(rank + 1) % size,
            recvbuf=came,
            source=(rank - 1) % size,
        )
        travelling, came = came, travelling
        x[here] = travelling[: here.stop - here.start]


@answers.right
def by_array_split(x, comm):
    parts, rank, size = np.array_split(x, comm.size), comm.rank, comm.size
    for index in range(rank, rank - size + 1, -1):
        comm.Sendrecv(
            parts[index], (rank + 1) % size, recvbuf=parts[index - 1], source=MPI.ANY_SOURCE
        )


@answers.right
def empty_chunks_are_not_sent(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing, incoming = (x[chunk(len(x), rank - step - i, size)] for i in (0, 1))
        requests = [comm.Irecv(incoming, (rank - 1) % size)] if len(incoming) else []
        requests += [comm.Isend(outgoing, (rank + 1) % size)] if len(outgoing) else []
        for request in requests:
            request.Wait()


@answers.right
def even_ranks_send_first(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        calls = [
            lambda step=step: comm.Ssend(x[chunk(len(x), rank - step, size)], (rank + 1) % size),
            lambda step=step: comm.Recv(x[chunk(len(x), rank - step - 1, size)], (rank - 1) % size),
        ]
        for call in calls if rank % 2 == 0 else calls[::-1]:
            call()


@answers.right
def returns_x_as_well(x, comm):
    answers.reference()(x, comm)
    return x
