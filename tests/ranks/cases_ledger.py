"""The ledger's records of calls with a known number of bytes."""

import array
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


def ring(world: World) -> tuple[int, int]:
    """Return the ranks after and before this one."""
    return (world.rank + 1) % world.size, (world.rank - 1) % world.size


# mpi4py: messages


BUFFERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "array": (lambda MPI: np.zeros(6), 48),
    "matrix_of_float32": (lambda MPI: np.zeros((2, 3), np.float32), 24),
    "array_and_type": (lambda MPI: [np.zeros(6), MPI.DOUBLE], 48),
    "array_and_letter": (lambda MPI: [np.zeros(6), "d"], 48),
    "count": (lambda MPI: [np.zeros(6), 4], 32),
    "count_and_type": (lambda MPI: (np.zeros(6, np.int32), 5, MPI.INT), 20),
    "count_with_displacement": (lambda MPI: [np.zeros(6), (3, 1), MPI.DOUBLE], 24),
    "tensor": (lambda MPI: torch.zeros(5, dtype=torch.int16), 10),
    "tensor_count_and_type": (lambda MPI: [torch.zeros(5), 2, MPI.FLOAT], 8),
    "bytes": (lambda MPI: bytearray(7), 7),
    "array_module": (lambda MPI: array.array("i", [1, 2, 3]), 12),
    "empty": (lambda MPI: np.zeros(0), 0),
}


@cases.add(buffer=list(BUFFERS))
def bytes_of_a_message(world: World, buffer: str) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    make, size = BUFFERS[buffer]
    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    request = comm.Isend(make(MPI), right, tag=3)
    comm.Recv(make(MPI), left, 3)
    request.Wait()
    sent, received = ledger.calls
    assert (sent.api, sent.op, sent.bytes_sent, sent.bytes_received) == ("Isend", "isend", size, 0)
    assert (sent.to, sent.source, sent.peer, sent.tag) == (right, None, right, 3)
    assert (received.api, received.op) == ("Recv", "recv")
    assert (received.bytes_sent, received.bytes_received, received.bytes) == (0, size, size)
    assert (received.source, received.peer, received.tag, received.to) == (left, left, 3, None)


@cases.add()
def a_receive_counts_the_bytes_that_arrive(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    status, room = MPI.Status(), np.zeros(100)
    request = comm.Irecv(room)
    assert ledger.calls[0].end is None and ledger.calls[0].source is None
    comm.Send(np.full(3, 2.5), right, tag=11)
    request.Wait(status)
    call = ledger.calls[0]
    assert (call.bytes_received, call.source, call.tag) == (24, left, 11)
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 11, 3)
    assert room[:4].tolist() == [2.5, 2.5, 2.5, 0]
    assert call.start < ledger.calls[1].start < ledger.calls[1].end < call.end
    comm.Sendrecv(np.zeros(2), right, 1, room, left, 1, status)
    call = ledger.calls[2]
    assert (call.op, call.bytes_sent, call.bytes_received, call.bytes) == ("sendrecv", 16, 16, 16)
    assert (call.to, call.source, status.source) == (right, left, left)
    comm.Sendrecv_replace(room, right, 0, left, 0)
    assert ledger.calls[3].bytes_received == 800
    assert len(ledger.sends()) == 3 and len(ledger.receives()) == 3


@cases.add()
def requests_whose_end_is_not_noticed(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    x, y = np.full(4, float(world.rank)), np.empty(4)
    requests = [comm.Irecv(y, left), comm.Issend(x, right)]
    assert all(isinstance(r, MPI.Request) and r != MPI.REQUEST_NULL for r in requests)
    MPI.Request.Waitall(requests)
    assert all(r == MPI.REQUEST_NULL for r in requests)
    assert y[0] == left
    comm.Barrier()
    received, sent, barrier = ledger.calls
    assert received.end <= barrier.start and sent.end <= barrier.start
    requests = [comm.irecv(source=left), comm.isend({"a": world.rank}, right)]
    assert MPI.Request.waitall(requests)[0] == {"a": left}
    request = comm.Isend(x, right)
    comm.Recv(y, left)
    while not request.Test():
        pass
    assert all(call.end is not None for call in ledger.calls)


@cases.add()
def objects_count_as_their_pickle(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    def size(value: Any) -> int:
        return len(MPI.pickle.dumps(value))

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    own, theirs = ["x" * (10 * r + 1) for r in (world.rank, left)]
    assert comm.sendrecv(own, right, source=left) == theirs
    request = comm.irecv(source=left)
    comm.send(own, right)
    assert request.wait() == theirs
    request = comm.isend(own, right)
    assert comm.recv(source=left) == theirs
    request.wait()
    for call in ledger.receives():
        assert (call.bytes_received, call.source) == (size(theirs), left)
    for call in ledger.sends():
        assert (call.bytes_sent, call.to) == (size(own), right)
    ledger.clear()
    values = ["x" * (10 * r + 1) for r in range(world.size)]
    everything = sum(map(size, values))
    is_root = world.rank == 0
    assert comm.allgather(own) == values
    assert comm.gather(own) == (values if is_root else None)
    assert comm.scatter(values if is_root else None) == own
    assert comm.bcast(values[1] if is_root else None) == values[1]
    assert comm.allreduce(1) == world.size
    assert comm.alltoall(values) == [own] * world.size
    comm.barrier()
    assert [(c.op, c.bytes_sent, c.bytes_received) for c in ledger.calls] == [
        ("all_gather", size(own), everything),
        ("gather", size(own), everything if is_root else 0),
        ("scatter", everything if is_root else 0, size(own)),
        ("broadcast", size(values[1]) if is_root else 0, 0 if is_root else size(values[1])),
        ("all_reduce", size(1), size(world.size)),
        ("all_to_all", everything, world.size * size(own)),
        ("barrier", 0, 0),
    ]


# mpi4py: collectives


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


# mpi4py: communicators


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


@cases.add(name=["Mprobe", "Improbe"])
def messages_found_by_a_matched_probe(world: World, name: str) -> None:
    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    sent = comm.Isend(np.zeros(3), right, tag=4)
    while (message := getattr(comm, name)()) is None:
        pass
    message.Recv(np.empty(3))
    sent.Wait()
    came = ledger.calls[-1]
    assert (came.op, came.source, came.bytes_received, came.tag) == ("recv", left, 24, 4)
    objects = comm.isend([1, 2], right)
    assert comm.mprobe().recv() == [1, 2]
    objects.wait()
    assert ledger.calls[-1].api == "recv"


@cases.add()
def persistent_requests_count_at_each_start(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    send, receive = comm.Send_init(np.zeros(3), right, 5), comm.Recv_init(np.empty(3), left)
    assert not ledger.calls
    for _ in range(2):
        for request in (send, receive):
            request.Start()
        receive.Wait()
        send.Wait()
    MPI.Prequest.Startall([send, receive])
    receive.Wait()
    send.Wait()
    calls = ledger.calls
    assert [call.op for call in calls[:4]] == ["isend", "irecv"] * 2
    assert ledger.count("isend") == ledger.count("irecv") == 3
    assert {(c.to, c.bytes_sent, c.tag) for c in calls if c.op == "isend"} == {(right, 24, 5)}
    assert {(c.source, c.bytes_received, c.tag) for c in calls if c.op == "irecv"} == {
        (left, 24, 5)
    }
    assert all(call.end is not None for call in calls)
    send.Start()
    assert ledger.calls[-1].op == "isend"
    receive.Start()
    MPI.Request.Waitall([send, receive])
    assert all(call.end is not None for call in ledger.calls)


@cases.add()
def starts_and_ends_of_several_requests_count(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger, came = Ledger(), np.empty(3)
    comm = ledger.watch(world.comm)
    requests = [comm.Send_init(np.ones(3), right), comm.Recv_init(came, left)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    assert [call.op for call in ledger.calls] == ["isend", "irecv"] * 2
    assert all(call.end is not None for call in ledger.calls)
    assert came.tolist() == [1, 1, 1]


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
def messages_to_no_rank_are_not_recorded(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    ledger = Ledger()
    comm = ledger.watch(world.comm)
    last = world.size - 1
    right = world.rank + 1 if world.rank < last else MPI.PROC_NULL
    left = world.rank - 1 if world.rank else MPI.PROC_NULL
    comm.Sendrecv(np.ones(2), right, 0, np.empty(2), left, 0)
    comm.Send(np.ones(2), MPI.PROC_NULL)
    op = "send" if world.rank == 0 else "recv" if world.rank == last else "sendrecv"
    (call,) = ledger.calls
    assert call.op == op
    assert (call.bytes_sent, call.bytes_received) == (
        16 * (world.rank < last),
        16 * (world.rank > 0),
    )


@cases.add()
def calls_that_raise_are_not_recorded(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    ledger = Ledger()
    comm = ledger.watch(world.comm)
    with expecting(MPI.Exception, "ERR_RANK"):
        comm.Send(np.ones(1), world.size)
    with expecting(TypeError):
        comm.Send()
    assert ledger.calls == []
    with expecting(ValueError, "use one of send, "):
        ledger.count("allreduce")


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


# torch.distributed


@cases.add(backend=["mpi4py", "gloo"])
def bytes_of_torch_collectives(world: World, backend: str) -> None:
    from parlab.ledger import Ledger

    group = world.group if backend == "mpi4py" else None
    n, root = world.size, world.rank == 1
    part, whole = torch.zeros(3), torch.zeros(3 * n)
    tensors = [torch.zeros(3) for _ in range(n)]
    with Ledger() as ledger:
        dist.barrier(group=group)
        dist.broadcast(part, 1, group=group)
        dist.reduce(part, 1, group=group)
        dist.all_reduce(part, group=group)
        dist.all_reduce(part, group=group, async_op=True).wait()
        dist.gather(part, tensors if root else None, 1, group=group)
        dist.scatter(part, tensors if root else None, 1, group=group)
        dist.all_gather(tensors, part, group=group)
        dist.all_gather_single(whole, part, group=group)
        dist.reduce_scatter(part, tensors, group=group)
        dist.reduce_scatter_single(part, whole, group=group)
        dist.all_to_all_single(whole, whole.clone(), group=group)
    dist.all_reduce(part, group=group)  # outside
    assert [(c.op, c.bytes_sent, c.bytes_received) for c in ledger.calls] == [
        ("barrier", 0, 0),
        ("broadcast", 12 * root, 12 * (not root)),
        ("reduce", 12, 12 * root),
        ("all_reduce", 12, 12),
        ("all_reduce", 12, 12),
        ("gather", 12, 12 * n * root),
        ("scatter", 12 * n * root, 12),
        ("all_gather", 12, 12 * n),
        ("all_gather", 12, 12 * n),
        ("reduce_scatter", 12 * n, 12),
        ("reduce_scatter", 12 * n, 12),
        ("all_to_all", 12 * n, 12 * n),
    ]
    assert all(c.size == n and c.end >= c.start for c in ledger.calls)
    assert [c.root for c in ledger.calls[1:3]] == [1, 1]


@cases.add(backend=["mpi4py", "gloo"])
def torch_messages(world: World, backend: str) -> None:
    from parlab.ledger import Ledger

    group = world.group if backend == "mpi4py" else None
    right, left = ring(world)
    with Ledger() as ledger:
        work = dist.isend(torch.zeros(5), right, group=group, tag=4)
        dist.recv(torch.zeros(5), left, group=group, tag=4)
        work.wait()
        dist.all_gather_object([None] * world.size, world.rank, group=group)
    sent, received, *sizes_and_pickles = ledger.calls
    assert (sent.op, sent.to, sent.bytes_sent, sent.tag) == ("send", right, 20, 4)
    assert (received.op, received.source, received.bytes_received) == ("recv", left, 20)
    assert [call.op for call in sizes_and_pickles] == ["all_gather", "all_gather"]


@cases.add(backend=["mpi4py", "gloo"])
def what_ddp_sends(world: World, backend: str) -> None:
    from parlab.ledger import Ledger

    model = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 10))
    parameters = 4 * sum(p.numel() for p in model.parameters())
    group = world.group if backend == "mpi4py" else None
    ddp = nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.001)
    for _ in range(2):  # buckets are rebuilt after the first step
        ddp(torch.ones(1, 100)).sum().backward()
    with Ledger() as ledger:
        ddp(torch.ones(1, 100)).sum().backward()
    assert ledger.count() == ledger.count("all_reduce") > 1
    assert ledger.bytes_sent("all_reduce") == parameters


def mesh_on(world: World, backend: str) -> Any:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if backend == "mpi4py":
        return DeviceMesh.from_group(world.group, "cpu")
    return init_device_mesh("cpu", (world.size,))


@cases.add(backend=["mpi4py", "gloo"])
def what_fsdp_sends(world: World, backend: str) -> None:
    """Parameters are gathered before the forward and backward passes; gradients are scattered."""
    from torch.distributed.fsdp import fully_shard

    from parlab.ledger import Ledger

    n = world.size
    model = nn.Sequential(nn.Linear(4 * n, 4 * n, bias=False), nn.Linear(4 * n, n, bias=False))
    mesh = mesh_on(world, backend)
    first, second = 4 * 16 * n * n, 4 * 4 * n * n
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with Ledger() as ledger:
        model(torch.ones(2, 4 * n)).sum().backward()
    assert ledger.bytes_received("all_gather") == 2 * (first + second)
    assert ledger.bytes_sent("reduce_scatter") == first + second
    assert ledger.count("all_gather") == 4 and ledger.count("reduce_scatter") == 2


@cases.add(backend=["mpi4py", "gloo"])
def dtensor_and_functional_collectives(world: World, backend: str) -> None:
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from parlab.ledger import Ledger

    mesh = mesh_on(world, backend)
    sharded = distribute_tensor(torch.arange(6.0 * world.size), mesh, [Shard(0)])
    with Ledger() as ledger:
        whole = sharded.redistribute(mesh, [Replicate()]).to_local()
        total = functional.all_reduce(torch.ones(5), "sum", mesh)
        assert whole.tolist() == list(range(6 * world.size)) and total[0] == world.size
    gathered, reduced = ledger.calls
    assert (gathered.op, gathered.bytes_sent) == ("all_gather", 24)
    assert gathered.bytes_received == 24 * world.size
    assert (reduced.op, reduced.bytes_sent, reduced.bytes_received) == ("all_reduce", 20, 20)


@cases.add()
def two_ledgers_at_a_time(world: World) -> None:
    from parlab.ledger import Ledger

    x = torch.ones(2)
    outer, inner = Ledger(), Ledger()
    with outer:
        dist.all_reduce(x)
        with inner, inner:  # the same ledger twice, so it records each call twice
            dist.all_reduce(x, group=world.group)
        dist.all_reduce(x, group=world.group)
    assert (outer.count(), inner.count()) == (3, 2)


@cases.add()
def bytes_on_a_ring(world: World) -> None:
    from parlab.ledger import Ledger

    group = world.group  # its first use is collective
    whole, shard = torch.zeros(10 * world.size), torch.zeros(10)
    with Ledger() as ledger:
        dist.all_gather_single(whole, shard, group=group)
        dist.reduce_scatter_single(shard, whole, group=group)
        dist.all_reduce(whole, group=group)
    assert ledger.ring_bytes() == 4 * 40 * (world.size - 1)


@cases.add()
def a_batch_is_recorded_message_by_message(world: World) -> None:
    """It uses meta tensors, because only NCCL implements this call."""
    from parlab.ledger import Ledger

    right, left = ring(world)
    sent, received = torch.empty(3, device="meta"), torch.empty(5, device="meta")
    batch = (["isend", "irecv"], [right, left], [7, 8], [sent, received])
    with Ledger() as ledger:
        torch.ops._c10d_functional.batch_p2p_ops(*batch, world.group.group_name)
    first, second = ledger.calls
    assert (first.op, first.bytes_sent, first.to, first.tag) == ("isend", 12, right, 7)
    assert (second.op, second.bytes_received, second.source, second.tag) == ("irecv", 20, left, 8)
