"""Answers to `ping_pong`."""

import statistics
import time

import numpy as np
from mpi4py import MPI

from parlab.answers import Answers

answers = Answers("ping_pong")

answers.edit("other_bytes", "size_for_elements", ("np.uint8", "np.float64"))
answers.edit("other_bytes", "a_byte_too_many", ("np.zeros(size,", "np.zeros(size + 1,"))
answers.edit(
    "does_not_end",
    "everybody_plays",
    ("    if comm.rank > 1:\n        return None\n", ""),
    says="What the stuck ranks wait for",
)
answers.edit("mean", "mean_of_the_trips", ("statistics.median", "statistics.mean"))
answers.edit(
    "mean", "mean_not_halved", ("statistics.median(round_trips) / 2", "sum(round_trips) / repeats")
)
answers.edit("other_unit", "milliseconds", ("return statistics", "return 1e3 * statistics"))
answers.edit("other_unit", "microseconds", ("return statistics", "return 1e6 * statistics"))
answers.edit("round_trip", "not_halved", ("(round_trips) / 2", "(round_trips)"))
answers.edit("all_together", "total", ("statistics.median", "sum"))
answers.edit("one_trip_alone", "quickest", ("statistics.median", "min"), says="the quickest")
answers.edit("one_trip_alone", "slowest", ("statistics.median", "max"), says="the slowest")
answers.edit(
    "one_trip_alone",
    "first",
    ("statistics.median(round_trips)", "round_trips[0]"),
)
answers.edit(
    "one_trip_alone",
    "last",
    ("statistics.median(round_trips)", "round_trips[-1]"),
)
answers.edit(
    "one_of_two", "lower_median", ("statistics.median(", "statistics.median_low("), says="the lower"
)
answers.edit(
    "one_of_two",
    "upper_median",
    ("statistics.median(round_trips)", "sorted(round_trips)[repeats // 2]"),
    says="the upper",
)
answers.edit(
    None,
    "without_a_warm_up",
    ("statistics.median(round_trips)", "statistics.median(round_trips[1:])"),
    says="median of the round trips, halved",
)
answers.edit(
    None,
    "mean_without_the_slowest",
    ("statistics.median(round_trips)", "statistics.mean(sorted(round_trips)[:-1])"),
    says="median of the round trips, halved",
)
answers.edit(
    None,
    "too_long",
    ("(round_trips) / 2", "(round_trips) / 1.2"),
    says="median of the round trips, halved",
)
answers.edit(
    None, "a_third", ("(round_trips) / 2", "(round_trips) / 3"), says="round trips, halved"
)
answers.edit(None, "not_a_number", ("statistics.median(round_trips)", "float('nan')"))
answers.edit("returned_elsewhere", "on_rank_1_too", (" if comm.rank == 0 else None", ""))
answers.edit("returns_none", "nothing_returned", ("return statistics", "statistics"))
answers.edit(
    "wrong_type", "text", ("return statistics", "return repr(statistics"), ("/ 2 if", "/ 2) if")
)
answers.edit(
    "unreadable",
    "all_the_trips",
    ("statistics.median(round_trips) / 2", "np.array(round_trips) / 2"),
)
answers.edit("other_count", "once_more", ("range(repeats)", "range(repeats + 1)"))
answers.edit("other_count", "once_less", ("range(repeats)", "range(repeats - 1)"))


@answers.wrong("no_answer")
def only_pings(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer = np.zeros(size, dtype=np.uint8)
    start = time.perf_counter()
    for _ in range(repeats):
        if comm.rank == 0:
            comm.Send(buffer, dest=1)
        else:
            comm.Recv(buffer, source=0)
    return (time.perf_counter() - start) / repeats if comm.rank == 0 else None


@answers.wrong("just_the_send")
def clock_stops_after_the_send(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer = np.zeros(size, dtype=np.uint8)
    sends = []
    for _ in range(repeats):
        if comm.rank == 0:
            start = time.perf_counter()
            comm.Send(buffer, dest=1)
            sends.append(time.perf_counter() - start)
            comm.Recv(buffer, source=1)
        else:
            comm.Recv(buffer, source=0)
            comm.Send(buffer, dest=0)
    return statistics.median(sends) if comm.rank == 0 else None


@answers.wrong("pickles")
def as_objects(size, repeats, comm):
    if comm.rank > 1:
        return None
    round_trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.send(bytes(size), dest=1)
            comm.recv(source=1)
        else:
            comm.send(comm.recv(source=0), dest=0)
        round_trips.append(time.perf_counter() - start)
    return statistics.median(round_trips) / 2 if comm.rank == 0 else None


@answers.wrong("answers_too_early")
def exchanged(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer, other = np.zeros((2, size), dtype=np.uint8)
    trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        comm.Sendrecv(buffer, dest=1 - comm.rank, recvbuf=other, source=1 - comm.rank)
        trips.append(time.perf_counter() - start)
    return statistics.median(trips) / 2 if comm.rank == 0 else None


@answers.wrong("next_too_early")
def all_pings_first(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffers = np.zeros((repeats, size), dtype=np.uint8)
    trips = []
    if comm.rank == 0:
        start = time.perf_counter()
        requests = [comm.Isend(buffer, dest=1) for buffer in buffers]
        for buffer in buffers:
            comm.Recv(buffer, source=1)
            trips.append(time.perf_counter() - start)
        MPI.Request.Waitall(requests)
        return statistics.median(trips) / 2
    for buffer in buffers:
        comm.Recv(buffer, source=0)
        comm.Send(buffer, dest=0)
    return None


@answers.wrong("others_play")
def in_pairs(size, repeats, comm):
    if comm.rank >= comm.size // 2 * 2:
        return None
    other = comm.rank ^ 1
    buffer = np.zeros(size, dtype=np.uint8)
    trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        if comm.rank < other:
            comm.Send(buffer, dest=other)
            comm.Recv(buffer, source=other)
        else:
            comm.Recv(buffer, source=other)
            comm.Send(buffer, dest=other)
        trips.append(time.perf_counter() - start)
    return statistics.median(trips) / 2 if comm.rank == 0 else None


@answers.wrong("collective")
def barrier_before_each(size, repeats, comm):
    comm.Barrier()
    return answers.reference()(size, repeats, comm)


def played(size, repeats, comm, ping, pong):
    """The median of `repeats` round trips: rank 0 calls `ping`, rank 1 `pong`."""
    if comm.rank > 1:
        return None
    buffer, other = np.zeros((2, size), dtype=np.uint8)
    trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        (pong if comm.rank else ping)(comm, buffer, other)
        trips.append(time.perf_counter() - start)
    return None if comm.rank else np.median(trips) / 2


def send_receive(comm, buffer, other):
    comm.Send(buffer, dest=1)
    comm.Recv(buffer, source=1)


def receive_send(comm, buffer, other):
    comm.Recv(buffer, source=0)
    comm.Send(buffer, dest=0)


@answers.right
def isend_and_wait(size, repeats, comm):
    def ping(comm, buffer, other):
        comm.Isend(buffer, dest=1).Wait()
        comm.Irecv(buffer, source=1).Wait()

    return played(size, repeats, comm, ping, receive_send)


@answers.right
def receive_posted_first(size, repeats, comm):
    def ping(comm, buffer, other):
        request = comm.Irecv(other, source=1)
        comm.Send(buffer, dest=1)
        request.Wait()

    return played(size, repeats, comm, ping, receive_send)


@answers.right
def sendrecv_at_rank_0(size, repeats, comm):
    def ping(comm, buffer, other):
        comm.Sendrecv(buffer, dest=1, recvbuf=other, source=1)

    return played(size, repeats, comm, ping, receive_send)


@answers.right
def both_requests_waited_for_together(size, repeats, comm):
    def ping(comm, buffer, other):
        MPI.Request.Waitall([comm.Irecv(other, source=1), comm.Isend(buffer, dest=1)])

    return played(size, repeats, comm, ping, receive_send)


@answers.right
def by_mpis_own_clock(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer, trips = bytearray(size), []
    for number in range(repeats):
        start = MPI.Wtime()
        if comm.rank == 0:
            comm.Ssend(buffer, dest=1, tag=number)
            comm.Recv(buffer, source=MPI.ANY_SOURCE, tag=number)
        else:
            comm.Recv(buffer)
            comm.Ssend(buffer, dest=0, tag=number)
        trips.append((MPI.Wtime() - start) / 2)
    return float(np.median(trips)) if comm.rank == 0 else None


@answers.right
def on_a_communicator_of_two(size, repeats, comm):
    two = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    if two == MPI.COMM_NULL:
        return None
    seconds = played(size, repeats, two, send_receive, receive_send)
    two.Free()
    return seconds


@answers.right
def persistent_requests(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer = np.zeros(size, dtype=np.uint8)
    send, receive = comm.Send_init(buffer, 1 - comm.rank), comm.Recv_init(buffer, 1 - comm.rank)
    order, trips = [send, receive] if comm.rank == 0 else [receive, send], []
    for _ in range(repeats):
        start = time.perf_counter()
        for request in order:
            request.Start()
            request.Wait()
        trips.append(time.perf_counter() - start)
    for request in order:
        request.Free()
    return statistics.median(trips) / 2 if comm.rank == 0 else None
