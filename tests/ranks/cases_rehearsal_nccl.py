"""The stand-in for NCCL has NCCL's restrictions. Each rank needs its own GPU."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


def own(world: World, *shape: int) -> torch.Tensor:
    return torch.full(shape, world.rank + 1.0, device="cuda")


@cases.add()
def collectives_of_the_default_group(world: World) -> None:
    assert dist.get_backend() == "nccl"
    total = sum(range(1, world.size + 1))
    x = own(world, 3)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [total / world.size] * 3
    whole = torch.empty(world.size, 2, device="cuda")
    dist.all_gather_single(whole, own(world, 2))
    assert whole[:, 0].tolist() == [rank + 1.0 for rank in range(world.size)]
    part = torch.empty(2, device="cuda")
    dist.reduce_scatter_single(part, whole)
    assert part.tolist() == [world.size * (world.rank + 1.0)] * 2
    parts = [torch.empty(2, device="cuda") for _ in range(world.size)]
    dist.all_gather(parts, own(world, 2))
    assert parts[-1].tolist() == [float(world.size)] * 2
    dist.broadcast(x, 0)
    gathered = [None] * world.size
    dist.all_gather_object(gathered, {"rank": world.rank})
    assert gathered[-1] == {"rank": world.size - 1}


@cases.add()
def an_uneven_all_to_all_counts_rows(world: World) -> None:
    """Rank r gets r + 1 rows from every rank."""
    to = [rank + 1 for rank in range(world.size)]
    came = [world.rank + 1] * world.size
    x, received = own(world, sum(to), 3), torch.empty(sum(came), 3, device="cuda")
    dist.all_to_all_single(received, x, came, to)
    expected = [rank + 1.0 for rank in range(world.size) for _ in range(world.rank + 1)]
    assert received[:, 2].tolist() == expected


@cases.add()
def tensors_of_the_cpu_are_refused(world: World) -> None:
    with expecting(RuntimeError, "No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))


@cases.add()
def a_result_that_nobody_waited_for_is_seen(world: World) -> None:
    x = own(world, 3)
    work = dist.all_reduce(x, async_op=True)
    with expecting(RuntimeError, "may still write"):
        x.sum()
    work.wait()
    assert x[0].item() == sum(range(1, world.size + 1))


@cases.add()
def a_batch_of_messages(world: World) -> None:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    x, room = own(world, 2), torch.empty(2, device="cuda")
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, room, left)]
    )
    for work in works:
        work.wait()
    assert room[0].item() == left + 1


@cases.add()
def ddp_on_the_default_group(world: World) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 2).cuda())
    model(own(world, 4, 3)).sum().backward()
    mean = 4 * sum(range(1, world.size + 1)) / world.size
    assert model.module.weight.grad.flatten().tolist() == [mean] * 6
