"""Answers to `binomial_broadcast`."""

import time

import numpy as np
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("binomial_broadcast")


@answers.wrong("too_many_rounds")
def the_root_sends_to_all_without_waiting(x, root, comm):
    # Isend does not make the wire wider: N − 1 messages still leave one rank.
    if comm.rank == root:
        requests = [comm.Isend(x, dest=dest) for dest in range(comm.size) if dest != root]
        MPI.Request.Waitall(requests)
    else:
        comm.Recv(x, source=root)


@answers.wrong("too_many_rounds", says="on 7 ranks")
def two_children_each(x, root, comm):
    relative = (comm.rank - root) % comm.size
    if relative:
        comm.Recv(x, source=((relative - 1) // 2 + root) % comm.size)
    for child in (2 * relative + 1, 2 * relative + 2):
        if child < comm.size:
            comm.Send(x, dest=(child + root) % comm.size)


@answers.wrong("too_many_rounds", says="on 7 ranks")
def again_on_many_ranks(x, root, comm):
    answers.reference()(x, root, comm)
    if comm.size > 4 and comm.rank == root:
        for rank in range(comm.size):
            if rank != root:
                comm.Send(x, dest=rank)
    elif comm.size > 4:
        comm.Recv(x, source=root)


@answers.wrong("needless_barrier")
def with_a_barrier(x, root, comm):
    answers.reference()(x, root, comm)
    comm.Barrier()


answers.edit(
    "not_in_place",
    "into_another_array",
    (
        "            comm.Recv(x, source",
        "            x = np.empty_like(x)\n            comm.Recv(x, source",
    ),
)
answers.edit(
    "never_arrived",
    "powers_of_two_only",
    ("while reached < comm.size:", "while 2 * reached <= comm.size:"),
)
answers.edit(
    "raises",
    "sends_to_ranks_that_are_not_there",
    ("(comm.rank + reached) % comm.size", "comm.rank + reached"),
    ("if relative + reached < comm.size:", "if True:"),
)


@answers.wrong("wrong_root")
def root_is_zero(x, root, comm):
    answers.reference()(x, 0, comm)


@answers.wrong(None)
def with_a_copy_beside_it(x, root, comm):
    both = np.stack([x, x])
    answers.reference()(both, root, comm)
    x[...] = both[0]


@answers.wrong(None, says="but `x` has")
def in_two_halves(x, root, comm):
    flat = x.reshape(-1)
    answers.reference()(flat[: x.size // 2], root, comm)
    answers.reference()(flat[x.size // 2 :], root, comm)


@answers.wrong("received_again")
def twice(x, root, comm):
    answers.reference()(x, root, comm)
    answers.reference()(x, root, comm)


@answers.wrong(None)
def the_root_gives_its_data_away(x, root, comm):
    answers.reference()(x, root, comm)
    if comm.rank == root:
        x[...] = 0


@answers.right
def halving_the_ranks(x, root, comm):
    # From the other end: first to the rank half way round, then to the quarters.
    relative, size = (comm.rank - root) % comm.size, comm.size
    own = relative & -relative if relative else 1 << (size - 1).bit_length()
    if relative:
        comm.Recv(x, source=(relative - own + root) % size)
    step = own // 2
    while step:
        if relative + step < size:
            comm.Send(x, dest=(relative + step + root) % size)
        step //= 2


@answers.wrong("next_broadcast")
def from_anybody(x, root, comm):
    relative = (comm.rank - root) % comm.size
    have, requests = relative == 0, []
    reached = 1
    while reached < comm.size:
        if have and relative + reached < comm.size:
            requests.append(comm.Isend(x, dest=(comm.rank + reached) % comm.size))
        if not have and relative < 2 * reached:
            comm.Recv(x, source=MPI.ANY_SOURCE)
            time.sleep(0.1 * (comm.rank == 1))  # as on a busy machine: its next broadcast is late
            have = True
        reached *= 2
    MPI.Request.Waitall(requests)


@answers.right
def recursively(x, root, comm):
    def tell(low, high):
        """Relative rank `low` has the data: bring it to all below `high`."""
        if high - low < 2:
            return
        middle = low + (high - low + 1) // 2
        if relative == low:
            comm.Send(x, dest=(middle + root) % comm.size)
        elif relative == middle:
            comm.Recv(x, source=(low + root) % comm.size)
        if relative < middle:
            tell(low, middle)
        else:
            tell(middle, high)

    relative = (comm.rank - root) % comm.size
    tell(0, comm.size)


@answers.right
def on_ranks_turned_to_the_root(x, root, comm):
    turned = comm.Split(0, (comm.rank - root) % comm.size)
    for bit in range(turned.size.bit_length()):
        if turned.rank < 2**bit:
            if turned.rank + 2**bit < turned.size:
                turned.Send(x, dest=turned.rank + 2**bit)
        elif turned.rank < 2 ** (bit + 1):
            turned.Recv(x, source=turned.rank - 2**bit)
    turned.Free()
    return x


@answers.right
def from_anybody_with_the_root_for_a_tag(x, root, comm):
    relative, reached = (comm.rank - root) % comm.size, 1
    if relative:
        comm.Recv(x, source=MPI.ANY_SOURCE, tag=root)
    while reached < comm.size:
        if relative < reached and relative + reached < comm.size:
            comm.Send(x, dest=(comm.rank + reached) % comm.size, tag=root)
        reached *= 2


@answers.right
def persistent_requests_started_together(x, root, comm):
    relative, reached = (comm.rank - root) % comm.size, 1
    requests = []
    while reached < comm.size:
        if reached <= relative < 2 * reached:
            receive = comm.Recv_init(x, source=(comm.rank - reached) % comm.size)
            MPI.Prequest.Startall([receive])
            MPI.Request.Waitall([receive])
        elif relative < reached and relative + reached < comm.size:
            requests.append(comm.Send_init(x, dest=(comm.rank + reached) % comm.size))
        reached *= 2
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)


@answers.right
def with_messages_to_nobody(x, root, comm):
    relative, reached = (comm.rank - root) % comm.size, 1
    while reached < comm.size:
        if reached <= relative < 2 * reached:
            comm.Recv(x, source=(comm.rank - reached) % comm.size)
        there = relative < reached and relative + reached < comm.size
        comm.Isend(x, (comm.rank + reached) % comm.size if there else MPI.PROC_NULL).Wait()
        reached *= 2
