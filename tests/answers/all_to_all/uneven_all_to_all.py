"""Answers to `uneven_all_to_all`."""

import numpy as np
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("uneven_all_to_all")
exchange = answers.reference("pairwise_all_to_all")

OWN = "places[rank][...] = parts[rank]"
TO = "to if counts[to] else MPI.PROC_NULL"
SOURCE = "source if received_counts[source] else MPI.PROC_NULL"
RESULT = "return received, received_counts"
COUNTS = "received_counts = pairwise_all_to_all(counts, comm)"
WRONG = "counts.shape != (size,) or counts.sum() != len(x)"

answers.edit(None, "returns_what_it_sent", (RESULT, "return received, counts.copy()"))
answers.edit("message_to_itself", "step_0", ("range(1, size)", "range(size)"), (OWN, "pass"))
answers.edit(None, "sends_empty_parts", (TO, "to"), (SOURCE, "source"))
answers.edit("not_refused", "any_sum", (WRONG, "counts.shape != (size,)"))
answers.edit(
    "not_refused",
    "any_number",
    (WRONG, "counts.sum() != len(x)"),
    (COUNTS, COUNTS[:18] + "pairwise_all_to_all(np.resize(counts, size), comm)"),
)
answers.edit(
    "library",
    "counts_by_the_library",
    (COUNTS, "received_counts = np.empty_like(counts)\n    comm.Alltoall(counts, received_counts)"),
)
answers.edit(
    "pickles",
    "counts_as_objects",
    (COUNTS, COUNTS + "\n    comm.sendrecv(0, (rank + 1) % size, source=(rank - 1) % size)"),
)
answers.edit(
    "shares_memory", "one_rank", (COUNTS, "if size == 1:\n        return x, counts\n    " + COUNTS)
)
answers.edit(
    "does_not_end",
    "counts_of_the_own_rank_decide",
    (SOURCE, "source if counts[source] else MPI.PROC_NULL"),
)
answers.edit("wrong_type", "rows_only", (RESULT, "return received"))
answers.edit(
    None,
    "all_counts_to_everybody",
    (
        COUNTS,
        "received_counts = pairwise_all_to_all(np.tile(counts, (size, 1)), comm)[:, rank].copy()",
    ),
)


@answers.wrong("order_of_arrival")
def in_the_order_of_the_steps(x, counts, comm):
    if len(counts) != comm.size or sum(counts) != len(x):
        raise ValueError("counts do not fit")
    received_counts = exchange(counts, comm)
    parts = np.split(x, np.cumsum(counts)[:-1])
    arrived = [parts[comm.rank]]
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        request = comm.Isend(parts[to], to) if counts[to] else MPI.REQUEST_NULL
        if received_counts[source]:
            arrived.append(np.empty((received_counts[source], *x.shape[1:]), x.dtype))
            comm.Recv(arrived[-1], source)
        request.Wait()
    return np.concatenate(arrived), received_counts


@answers.wrong("one_after_the_other")
def one_sender_at_a_time(x, counts, comm):
    if len(counts) != comm.size or sum(counts) != len(x):
        raise ValueError("counts do not fit")
    received_counts = exchange(counts, comm)
    parts = np.split(x, np.cumsum(counts)[:-1])
    places = [np.empty((count, *x.shape[1:]), x.dtype) for count in received_counts]
    places[comm.rank] = parts[comm.rank]
    for sender in range(comm.size):
        if comm.rank != sender:
            if received_counts[sender]:
                comm.Recv(places[sender], sender)
            continue
        for to in range(comm.size):
            if to != sender and counts[to]:
                comm.Send(parts[to], to)
    return np.concatenate(places), received_counts


@answers.wrong("nothing_sent")
def around_the_watched_methods(x, counts, comm):
    return answers.reference()(x, counts, MPI.Intracomm(comm))


@answers.right
def count_and_rows_in_each_step(x, counts, comm):
    if len(counts) != comm.size or sum(counts) != len(x):
        raise ValueError("counts do not fit")
    parts, received_counts = np.split(x, np.cumsum(counts)[:-1]), counts.copy()
    places = list(parts)
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        count = received_counts[source : source + 1]
        comm.Sendrecv(counts[to : to + 1], to, recvbuf=count, source=source)
        places[source] = np.empty((count[0], *x.shape[1:]), x.dtype)
        request = comm.Irecv(places[source], source) if count[0] else None
        if counts[to]:
            comm.Send(parts[to], to)
        if request is not None:
            request.Wait()
    return np.concatenate(places), received_counts


@answers.right
def everything_at_once(x, counts, comm):
    if counts.shape != (comm.size,) or counts.sum() != x.shape[0]:
        raise ValueError(f"counts {counts} do not fit {len(x)} rows")
    rank, size = comm.rank, comm.size
    others = [((rank + step) % size, (rank - step) % size) for step in range(1, size)]
    received_counts = counts.copy()
    requests = [comm.Irecv(received_counts[i : i + 1], i) for _, i in others]
    requests += [comm.Isend(counts[to : to + 1], to) for to, _ in others]
    MPI.Request.Waitall(requests)
    begins, starts = (np.cumsum(n) - n for n in (received_counts, counts))
    received = np.empty((received_counts.sum(), *x.shape[1:]), x.dtype)
    own = slice(begins[rank], begins[rank] + counts[rank])
    received[own] = x[starts[rank] : starts[rank] + counts[rank]]
    requests = []
    for _, i in others:
        if received_counts[i]:
            place = received[begins[i] : begins[i] + received_counts[i]]
            requests.append(comm.Irecv(place, i))
    for to, _ in others:
        if counts[to]:
            requests.append(comm.Isend(x[starts[to] : starts[to] + counts[to]], to))
    MPI.Request.Waitall(requests)
    return received, received_counts


@answers.right
def vectors_of_bytes(x, counts, comm):
    if len(counts) != comm.size or sum(counts) != len(x):
        raise ValueError("counts do not fit")
    received_counts, row = exchange(counts, comm), x.itemsize
    row *= int(np.prod(x.shape[1:]))
    raw = np.frombuffer(x.tobytes(), np.uint8)
    parts = np.split(raw, np.cumsum(counts * row)[:-1])
    received = np.zeros(received_counts.sum() * row, np.uint8)
    places = np.split(received, np.cumsum(received_counts * row)[:-1])
    places[comm.rank][:] = parts[comm.rank]
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        to_whom = to if len(parts[to]) else MPI.PROC_NULL
        from_whom = source if len(places[source]) else MPI.PROC_NULL
        comm.Sendrecv(parts[to], to_whom, recvbuf=places[source], source=from_whom)
    return received.view(x.dtype).reshape(-1, *x.shape[1:]), received_counts


@answers.right
def partners_by_xor_where_possible(x, counts, comm):
    if len(counts) != comm.size or sum(counts) != len(x):
        raise ValueError("counts do not fit")
    rank, size = comm.rank, comm.size
    received_counts = exchange(counts, comm)
    parts = np.split(x, np.cumsum(counts)[:-1])
    places = [np.empty((count, *x.shape[1:]), x.dtype) for count in received_counts]
    places[rank] = parts[rank]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        if size == 4:
            to = source = rank ^ step
        requests = [comm.Irecv(places[source], source)] if received_counts[source] else []
        requests += [comm.Isend(parts[to], to)] if counts[to] else []
        MPI.Request.Waitall(requests)
    return np.concatenate(places), received_counts
