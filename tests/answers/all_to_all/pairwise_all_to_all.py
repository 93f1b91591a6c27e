"""Answers to `pairwise_all_to_all`."""

import numpy as np
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("pairwise_all_to_all")

OWN = "received[rank] = x[rank]"
PLACE = "received[source : source + 1]"
WAYS = "(rank + step) % size, (rank - step) % size"
INCOMING = "incoming = received[source : source + 1]"
SEND = "comm.Sendrecv(x[to : to + 1], dest=to, recvbuf=incoming, source=source)"
HIDDEN = SEND.replace("comm.Sendrecv(", "MPI.Intracomm.Sendrecv(comm, ")

answers.edit(None, "no_copy_of_the_own_row", (OWN, "received[rank] = 0"))
answers.edit(
    "order_of_arrival",
    "by_step",
    (OWN, "received[0] = x[rank]"),
    (PLACE, "received[step : step + 1]"),
)
answers.edit("other_order", "backwards", (WAYS, "(rank - step) % size, (rank + step) % size"))
answers.edit("message_to_itself", "step_0", ("range(1, size)", "range(size)"))
answers.edit(None, "one_step_too_few", ("range(1, size)", "range(1, size - 1)"))
answers.edit("not_refused", "too_few_rows_only", ("len(x) != size", "len(x) < size"))
answers.edit("shares_memory", "one_rank", (OWN, OWN + "\n    if size == 1:\n        return x"))
answers.edit(
    "shares_memory", "nothing_to_send", (OWN, OWN + "\n    if not x.size:\n        return x")
)
answers.edit("argument_changed", "into_x", (OWN, OWN + "\n    x[rank] = 0"))
answers.edit("wrong_dtype", "rows_of_float64", ("np.empty_like(x)", "np.empty(x.shape)"))
answers.edit(
    None,
    "everything_to_everybody",
    (INCOMING, "incoming = np.empty_like(x)"),
    (SEND, SEND.replace("x[to : to + 1]", "x") + "\n        received[source] = incoming[rank]"),
    says="bytes in one message, a row has",
)
answers.edit("nothing_sent", "around_the_watched_methods", (SEND, HIDDEN))
answers.edit(
    None,
    "last_row_around_the_watched_methods",
    (SEND, f"if step < size - 1:\n            {SEND}\n        else:\n            {HIDDEN}"),
    says="rank 0 sends 2 messages, expected 3",
)


@answers.wrong("library")
def by_the_library(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = np.empty_like(x)
    comm.Alltoall(x, received)
    return received


@answers.wrong("pickles")
def objects(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = x.copy()
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        received[source] = comm.sendrecv(x[to], dest=to, source=source)
    return received


@answers.wrong("other_order")
def all_to_rank_0_first(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received, others = x.copy(), [other for other in range(comm.size) if other != comm.rank]
    requests = [comm.Irecv(received[other : other + 1], other) for other in others]
    requests += [comm.Isend(x[other : other + 1], other) for other in others]
    MPI.Request.Waitall(requests)
    return received


@answers.wrong("one_after_the_other")
def one_sender_at_a_time(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = x.copy()
    for step in range(1, comm.size):
        for sender in range(comm.size):
            receiver = (sender + step) % comm.size
            if comm.rank == sender:
                comm.Send(x[receiver : receiver + 1], receiver)
            elif comm.rank == receiver:
                comm.Recv(received[sender : sender + 1], sender)
    return received


@answers.wrong("does_not_end", says="wait in a send")
def send_then_receive(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = x.copy()
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.Send(x[to : to + 1], to)
        comm.Recv(received[source : source + 1], source)
    return received


@answers.wrong("no_wait")
def never_waits(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = x.copy()
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.Isend(x[to : to + 1], to)
        comm.Recv(received[source : source + 1], source)
    return received


KEPT = {}


@answers.wrong(None)
def one_array_for_all_results(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = KEPT.setdefault((x.shape, x.dtype), np.empty_like(x))
    received[comm.rank] = x[comm.rank]
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.Sendrecv(x[to : to + 1], to, recvbuf=received[source : source + 1], source=source)
    return received


@answers.right
def receive_posted_first(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = x.copy()
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        request = comm.Irecv(received[source : source + 1], source)
        comm.Send(x[to : to + 1], to)
        request.Wait()
    return received


@answers.right
def all_steps_at_once(x, comm):
    if x.shape[0] != comm.size:
        raise ValueError(f"`x` must have {comm.size} rows, got {x.shape[0]}")
    received, requests = x.copy(), []
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        requests.append(comm.Irecv(received[source : source + 1], source, tag=step))
        requests.append(comm.Isend(x[to : to + 1], to, tag=step))
    MPI.Request.Waitall(requests)
    return received


@answers.right
def replaced_in_a_copy(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    received = np.empty_like(x)
    received[comm.rank] = x[comm.rank]
    for to in [*range(comm.rank + 1, comm.size), *range(comm.rank)]:
        source = (2 * comm.rank - to) % comm.size
        row = x[to : to + 1].copy()
        comm.Sendrecv_replace(row, dest=to, source=source)
        received[source] = row[0]
    return received


@answers.right
def empty_rows_are_not_sent(x, comm):
    if len(x) != comm.size:
        raise ValueError("x has another number of rows than there are ranks")
    if not x.size:
        return x.copy()
    ours, parts = x.reshape(comm.size, -1), np.zeros_like(x)
    places = parts.reshape(comm.size, -1)
    places[comm.rank] = ours[comm.rank]
    for step in range(1, comm.size):
        source = (comm.rank - step) % comm.size
        to = (comm.rank + step) % comm.size
        comm.Sendrecv(ours[to], dest=to, recvbuf=places[source], source=source)
    return parts
