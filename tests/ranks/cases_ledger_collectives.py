"""The ledger's records of mpi4py's collectives, and its table of them."""

import threading
from typing import Any

import numpy as np

from tests.support.on_ranks import Cases, World

cases = Cases()


@cases.add(nonblocking=[False, True], counted=[False, True])
def bytes_of_collectives(world: World, nonblocking: bool, counted: bool) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    n, is_root = world.size, world.rank == n_root(world)
    root = n_root(world)
    part, whole = np.zeros(3), np.zeros(3 * n)
    # With explicit counts. If the parts are equal, the count is the size of one rank's part.
    parts = [whole, 3, MPI.DOUBLE] if counted else whole
    listed = [whole, [3] * n, MPI.DOUBLE]
    calls: list[tuple[str, tuple[Any, ...], str, int, int]] = [
        ("Barrier", (), "barrier", 0, 0),
        ("Bcast", (part, root), "broadcast", 24 * is_root, 24 * (not is_root)),
        ("Reduce", (part, part + 1, MPI.SUM, root), "reduce", 24, 24 * is_root),
        ("Allreduce", (part, part + 1), "all_reduce", 24, 24),
        ("Gather", (part, parts, root), "gather", 24, 24 * n * is_root),
        ("Gatherv", (part, listed, root), "gather", 24, 24 * n * is_root),
        ("Scatter", (parts, part, root), "scatter", 24 * n * is_root, 24),
        ("Scatterv", (listed, part, root), "scatter", 24 * n * is_root, 24),
        ("Allgather", (part, parts), "all_gather", 24, 24 * n),
        ("Allgatherv", (part, listed), "all_gather", 24, 24 * n),
        ("Alltoall", (parts, parts_of(whole + 1, counted, MPI)), "all_to_all", 24 * n, 24 * n),
        ("Alltoallv", (listed, [whole + 1, [3] * n]), "all_to_all", 24 * n, 24 * n),
        ("Reduce_scatter", (whole, part, [3] * n), "reduce_scatter", 24 * n, 24),
        ("Reduce_scatter_block", (parts, part), "reduce_scatter", 24 * n, 24),
        ("Scan", (part, part + 1), "scan", 24, 24),
    ]
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    for name, arguments, *_ in calls:
        if nonblocking:
            getattr(comm, f"I{name.lower()}")(*arguments).Wait()
        else:
            getattr(comm, name)(*arguments)
    entered = [(c.op, c.bytes_sent, c.bytes_received) for c in ledger.calls]
    assert entered == [(op, sent, received) for _, _, op, sent, received in calls]
    assert [c.root for c in ledger.calls][1:3] == [root, root]
    assert all(c.size == n and c.end >= c.start for c in ledger.calls)


def n_root(world: World) -> int:
    return world.size - 1


def parts_of(whole: np.ndarray, counted: bool, MPI: Any) -> Any:
    return [whole, 3, MPI.DOUBLE] if counted else whole


@cases.add()
def collectives_in_place(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    n, is_root = world.size, world.rank == 0
    part, whole = np.ones(3), np.ones(3 * n)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    comm.Allreduce(MPI.IN_PLACE, part)
    assert part[0] == n
    comm.Allgather(MPI.IN_PLACE, whole)
    comm.Reduce(MPI.IN_PLACE if is_root else part, part, root=0)
    comm.Reduce_scatter_block(MPI.IN_PLACE, whole)
    comm.Gather(MPI.IN_PLACE if is_root else part, whole, root=0)
    comm.Scatter(whole, MPI.IN_PLACE if is_root else part, root=0)
    assert [(c.bytes_sent, c.bytes_received) for c in ledger.calls] == [
        (24, 24),
        (24, 24 * n),
        (24, 24 * is_root),
        (24 * n, 24),
        (24, 24 * n * is_root),
        (24 * n * is_root, 24),
    ]


@cases.add()
def persistent_and_neighborhood_collectives(world: World) -> None:
    from parlab.ledger import Ledger

    ledger, total, came = Ledger(), np.empty(2), np.empty(4)
    comm = ledger.watch(world.comm)
    request = comm.Allreduce_init(np.ones(2), total)
    request.Start()
    request.Wait()
    grid = comm.Create_cart([world.size], periods=[True])
    grid.Neighbor_alltoall(np.arange(4.0), came)
    grid.neighbor_allgather("own")
    assert [call.op for call in ledger.calls] == [
        "all_reduce",
        "neighbor_all_to_all",
        "neighbor_all_gather",
    ]
    assert [call.bytes_sent for call in ledger.calls[:2]] == [16, 32]
    assert all(call.end is not None for call in ledger.calls)
    assert total.tolist() == [world.size] * 2 and came.tolist() == [2, 3, 0, 1]


@cases.add()
def calls_have_the_names_of_their_threads(world: World) -> None:
    from parlab.ledger import Ledger

    ledger = Ledger()
    comm = ledger.watch(world.comm)
    comm.Barrier()
    thread = threading.Thread(target=comm.Barrier, name="helper")
    thread.start()
    thread.join()
    assert [call.thread for call in ledger.calls] == ["MainThread", "helper"]


@cases.add()
def table(world: World) -> None:
    from parlab.ledger import Ledger

    ledger = Ledger()
    assert (
        ledger.table().split()
        == ["calls", "bytes", "sent", "bytes", "received", "total"] + ["0"] * 3
    )
    comm = ledger.watch(world.comm)
    comm.Allreduce(np.ones(1000), np.ones(1000))
    comm.Barrier()
    assert ledger.table() == (
        "            calls  bytes sent  bytes received\n"
        "all_reduce      1       8,000           8,000\n"
        "barrier         1           0               0\n"
        "total           2       8,000           8,000"
    )
