"""The ledger also watches what is made from its communicators, and recovery renews them."""

import numpy as np

from tests.ranks.neighbors import ring
from tests.support.on_ranks import Cases, World

cases = Cases()


@cases.add()
def communicators_made_from_a_watched_one(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    ledger = Ledger()
    comm = ledger.watch(world.comm)
    assert (comm.rank, comm.size) == (world.rank, world.size)
    assert MPI.Comm.Compare(comm, world.comm) == MPI.IDENT
    for made in (
        comm.Dup(),
        comm.Split(0, -world.rank),
        comm.Create_group(comm.Get_group()),
        comm.Split(0).Split(0),
    ):
        made.Allreduce(MPI.IN_PLACE, np.ones(2))
        made.Free()
        assert made == MPI.COMM_NULL
    assert ledger.count() == ledger.count("all_reduce") == 4
    alone = comm.Split(world.rank if world.rank else MPI.UNDEFINED)
    assert (alone == MPI.COMM_NULL) == (world.rank == 0)
    if alone != MPI.COMM_NULL:
        alone.Barrier()
        assert ledger.calls[-1].size == 1


@cases.add()
def ranks_are_those_of_the_watched_communicator(world: World) -> None:
    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    part = ledger.watch(world.comm).Split(0, -world.rank)  # in reverse order
    part.Sendrecv(np.zeros(2), (part.rank - 1) % part.size, recvbuf=np.empty(2))
    part.Bcast(np.zeros(1), root=0)
    message, broadcast = ledger.calls
    assert (message.to, message.source) == (right, left)
    assert broadcast.root == world.size - 1


@cases.add()
def grids_keep_their_methods(world: World) -> None:
    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    grid = ledger.watch(world.comm).Create_cart([world.size], periods=[True])
    assert grid.Shift(0, 1) == (left, right)
    grid.Sendrecv(np.zeros(2), right, recvbuf=np.empty(2))
    (message,) = ledger.calls
    assert (message.to, message.source) == (right, left)
    grid.Free()


@cases.add()
def a_watched_communicator_is_renewed_with_its_own(world: World) -> None:
    from parlab.ledger import Ledger
    from parlab.rank import world as ranks

    original = ranks.new_communicator()
    ledger = Ledger()
    comm = ledger.watch(original)
    world.comm.Barrier()  # Open MPI crashes if a communicator is revoked while it is made
    comm.Revoke()
    assert comm.Is_revoked()
    ranks.renew()
    assert not comm.Is_revoked()
    assert comm.allreduce(1) == world.size
    assert comm.Get_size() == world.size


@cases.add()
def a_communicator_that_is_watched_twice_is_renewed(world: World) -> None:
    from parlab.ledger import Ledger
    from parlab.rank import world as of_lab

    ledger = Ledger()
    twice = ledger.watch(ledger.watch(world.comm))
    of_lab.renew()
    twice.Barrier()
    assert twice == world.comm
