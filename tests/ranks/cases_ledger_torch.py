"""The ledger's records of what torch sends: torch.distributed, DDP, FSDP, DTensor."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.ranks.neighbors import ring
from tests.support.on_ranks import Cases, World

cases = Cases()


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
