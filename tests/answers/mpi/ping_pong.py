"""Answers to `ping_pong`."""

import statistics
import time

import numpy as np
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("ping_pong")

MEDIAN, RETURN = "statistics.median(round_trips)", "return statistics"
for mistake, name, *edit in (
    (None, "size_for_elements", "np.uint8", "np.float64"),
    ("mean", "mean_of_the_trips", "statistics.median", "statistics.mean"),
    (None, "microseconds", RETURN, "return 1e6 * statistics"),
    ("round_trip", "not_halved", "(round_trips) / 2", "(round_trips)"),
    (None, "total", "statistics.median", "sum"),
    (None, "first", MEDIAN, "round_trips[0]"),
    (None, "upper_median", MEDIAN, "sorted(round_trips)[repeats // 2]"),
    (None, "too_long", "(round_trips) / 2", "(round_trips) / 1.2"),
    (None, "not_a_number", MEDIAN, "float('nan')"),
    ("returned_elsewhere", "on_rank_1_too", " if comm.rank == 0 else None", ""),
    ("returns_none", "nothing_returned", RETURN, "statistics"),
    ("unreadable", "all_the_trips", f"{MEDIAN} / 2", "np.array(round_trips) / 2"),
    (None, "once_more", "range(repeats)", "range(repeats + 1)"),
):
    answers.edit(mistake, name, tuple(edit))
answers.edit(
    None,
    "no_trips",
    ("range(repeats)", "range(0)"),
    (MEDIAN, "1.0"),
    says="rank 0 sends no messages, expected",
)
answers.edit("wrong_type", "text", (RETURN, "return repr(statistics"), ("/ 2 if", "/ 2) if"))
answers.edit(
    "does_not_end",
    "everybody_plays",
    ("    if comm.rank > 1:\n        return None\n", ""),
    says="If the stuck ranks wait for messages from them, or for them to",
)


def send_receive(comm, buffer, other):
    comm.Send(buffer, dest=1)
    comm.Recv(other, source=1)


def receive_send(comm, buffer, other):
    comm.Recv(other, source=0)
    comm.Send(buffer, dest=0)


def played(size, repeats, comm, ping, pong=receive_send):
    """Return half of the median of `repeats` round trips: rank 0 calls `ping`, rank 1 `pong`."""
    if comm.rank > 1:
        return None
    buffer, other = np.zeros((2, size), dtype=np.uint8)
    trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        (pong if comm.rank else ping)(comm, buffer, other)
        trips.append(time.perf_counter() - start)
    return None if comm.rank else np.median(trips) / 2


@answers.wrong("part_of_the_trip")
def clock_stops_after_the_send(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer, times = np.zeros(size, dtype=np.uint8), []
    for _ in range(repeats):
        first, second = (comm.Recv, comm.Send) if comm.rank else (comm.Send, comm.Recv)
        start = time.perf_counter()
        first(buffer, 1 - comm.rank)
        times.append(time.perf_counter() - start)
        second(buffer, 1 - comm.rank)
    return None if comm.rank else statistics.median(times) / 2


@answers.wrong("pickles")
def as_objects(size, repeats, comm):
    def ping(comm, buffer, _):
        comm.send(bytes(buffer), dest=1)
        comm.recv(source=1)

    def pong(comm, *_):
        comm.send(comm.recv(source=0), dest=0)

    return played(size, repeats, comm, ping, pong)


@answers.wrong("overlapping")
def exchanged(size, repeats, comm):
    def exchange(comm, buffer, other):
        comm.Sendrecv(buffer, dest=1 - comm.rank, recvbuf=other, source=1 - comm.rank)

    return played(size, repeats, comm, exchange, exchange)


@answers.wrong("overlapping")
def all_pings_first(size, repeats, comm):
    def pings(comm, buffer, other):
        requests = [comm.Isend(buffer, dest=1) for _ in range(repeats)]
        for _ in range(repeats):
            comm.Recv(other, source=1)
        MPI.Request.Waitall(requests)

    def pongs(comm, buffer, other):
        for _ in range(repeats):
            receive_send(comm, buffer, other)

    return played(size, 1, comm, pings, pongs)


@answers.wrong("others_play")
def in_pairs(size, repeats, comm):
    pair = comm.Split(comm.rank // 2, comm.rank)
    alone = pair.size == 1
    seconds = None if alone else played(size, repeats, pair, send_receive)
    pair.Free()
    return seconds if comm.rank == 0 else None


@answers.wrong("needless_barrier")
def barrier_before_each(size, repeats, comm):
    comm.Barrier()
    return answers.reference()(size, repeats, comm)


stops = []  # of this process


@answers.right
def stopped_once_by_the_machine(size, repeats, comm):
    """Between the clock and the message of the median trip, as much time passes as in the trip."""
    trips = iter(range(repeats))

    def ping(comm, buffer, other):
        if next(trips) == 2 and not stops:
            time.sleep(0.02)
            stops.append(1)
        send_receive(comm, buffer, other)

    return played(size, repeats, comm, ping)


@answers.right
def isend_and_wait(size, repeats, comm):
    def ping(comm, buffer, other):
        comm.Isend(buffer, dest=1).Wait()
        comm.Irecv(other, source=1).Wait()

    return played(size, repeats, comm, ping)


@answers.right
def receive_posted_first(size, repeats, comm):
    def ping(comm, buffer, other):
        request = comm.Irecv(other, source=1)
        comm.Send(buffer, dest=1)
        request.Wait()

    return played(size, repeats, comm, ping)


@answers.right
def both_requests_waited_for_together(size, repeats, comm):
    def ping(comm, buffer, other):
        MPI.Request.Waitall([comm.Irecv(other, source=1), comm.Isend(buffer, dest=1)])

    return played(size, repeats, comm, ping)


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
    seconds = played(size, repeats, two, send_receive)
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
