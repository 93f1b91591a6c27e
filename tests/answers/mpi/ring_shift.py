"""Answers to `ring_shift`."""

import numpy as np
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("ring_shift")


@answers.wrong("no_wait", says="rank 0 never waits")
def isend_without_wait(x, comm):
    received = np.empty_like(x)
    comm.Isend(x, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received


@answers.wrong("does_not_end", says="wait in a send")
def all_send_first(x, comm):
    received = np.empty_like(x)
    comm.Send(x, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received


answers.edit(
    "wrong_source",
    "wrong_way",
    ("dest=right, recvbuf=received, source=left", "dest=left, recvbuf=received, source=right"),
)


@answers.wrong("sent_again")
def sent_twice(x, comm):
    answers.reference()(x, comm)
    return answers.reference()(x, comm)


@answers.wrong("lab_communicator")
def over_the_labs_own(x, comm):
    received = np.empty_like(x)
    world = MPI.COMM_WORLD
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    world.Sendrecv(x, dest=right, recvbuf=received, source=left)
    return received


@answers.wrong("argument_changed")
def into_x(x, comm):
    comm.Sendrecv_replace(x, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    return x


@answers.wrong("one_after_the_other")
def one_rank_receives_first(x, comm):
    received = np.empty_like(x)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return x.copy()
    if comm.rank == 0:
        comm.Recv(received, source=left)
        comm.Send(x, dest=right)
    else:
        comm.Send(x, dest=right)
        comm.Recv(received, source=left)
    return received


@answers.wrong("pickles")
def as_objects(x, comm):
    return comm.sendrecv(x, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)


@answers.wrong("library")
def gathered_by_a_persistent_collective(x, comm):
    every = np.empty((comm.size, *x.shape), x.dtype)
    request = comm.Allgather_init(x, every)
    MPI.Prequest.Startall([request])
    MPI.Request.Waitall([request])
    return every[comm.rank - 1].copy()


@answers.right
def replaced_in_a_copy(x, comm):
    moving = x.copy()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv_replace(moving, dest=right, source=left)
    return moving


@answers.right
def from_whoever_sends(x, comm):
    received = np.empty_like(x)
    sent = comm.Isend(x, dest=(comm.rank + 1) % comm.size, tag=7)
    comm.Recv(received, source=MPI.ANY_SOURCE, tag=7)
    sent.Wait()
    return received


@answers.right
def even_ranks_send_first(x, comm):
    received = np.empty_like(x)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        received[...] = x
    elif comm.rank % 2 == 0:
        comm.Send(x, dest=right)
        comm.Recv(received, source=left)
    else:
        comm.Recv(received, source=left)
        comm.Send(x, dest=right)
    return received


@answers.right
def on_a_split_in_reverse(x, comm):
    part = comm.Split(0, -comm.rank)  # its rank 0 is our last one: its left is our right
    received = np.empty_like(x)
    right, left = (part.rank - 1) % part.size, (part.rank + 1) % part.size
    part.Sendrecv(x, dest=right, recvbuf=received, source=left)
    part.Free()
    return received


@answers.right
def started_together(x, comm):
    received, moving = np.empty_like(x), np.ascontiguousarray(x)
    send = comm.Send_init(moving, dest=(comm.rank + 1) % comm.size)
    receive = comm.Recv_init(received, source=(comm.rank - 1) % comm.size)
    MPI.Prequest.Startall([receive, send])
    MPI.Request.Waitall([send, receive])
    return received


_kept = {}


@answers.wrong("array_used_again")
def one_array_for_all_results(x, comm):
    received = _kept.setdefault((x.shape, x.dtype), np.empty_like(x))
    comm.Sendrecv(
        x, (comm.rank + 1) % comm.size, recvbuf=received, source=(comm.rank - 1) % comm.size
    )
    return received


@answers.wrong("wrong_shape")
def as_a_vector(x, comm):
    received = np.empty(x.size, x.dtype)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(x, dest=right, recvbuf=received, source=left)
    return received


@answers.wrong("returns_none")
def nothing_returned(x, comm):
    answers.reference()(x, comm)


@answers.right
def itself_where_it_is_alone(x, comm):
    return x if comm.size == 1 else answers.reference()(x, comm)


@answers.wrong("nothing_sent")
def around_the_watched_methods(x, comm):
    received, right, left = np.empty_like(x), (comm.rank + 1) % comm.size, comm.rank - 1
    MPI.Comm.Sendrecv(comm, x, right, 0, received, left % comm.size)
    return received


@answers.wrong("changed_before_wait")
def received_into_what_is_sent(x, comm):
    buffer = x.copy()
    request = comm.Isend(buffer, dest=(comm.rank + 1) % comm.size)
    comm.Recv(buffer, source=(comm.rank - 1) % comm.size)
    request.Wait()
    return buffer
