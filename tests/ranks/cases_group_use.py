"""The mpi4py group in use: sub-groups, asynchronous work, errors."""

from datetime import timedelta

import torch
import torch.distributed as dist

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


# Sub-groups


MEMBERS = {
    "rank_0": lambda n: [0],
    "rank_1": lambda n: [1],
    "two": lambda n: [0, 1],
    "two_the_other_way_round": lambda n: [1, 0],
    "last_two": lambda n: [n - 2, n - 1],
    "all": lambda n: list(range(n)),
}


@cases.add(members=list(MEMBERS))
def sub_group(world: World, members: str) -> None:
    chosen = MEMBERS[members](world.size)
    ours, gloos = dist.new_group(chosen, backend="mpi4py"), dist.new_group(chosen)
    assert ours is not world.group
    if world.rank not in chosen:
        assert ours == dist.GroupMember.NON_GROUP_MEMBER
        return
    assert dist.get_rank(ours) == dist.get_rank(gloos)
    assert dist.get_world_size(ours) == len(chosen)
    assert dist.get_process_group_ranks(ours) == dist.get_process_group_ranks(gloos)
    assert dist.get_backend(ours) == "mpi4py"
    results = []
    for group in (ours, gloos):
        x, root = torch.arange(3.0) + world.rank, torch.tensor([float(world.rank)])
        dist.all_reduce(x, group=group)
        dist.broadcast(root, src=max(chosen), group=group)
        parts = [torch.empty(1) for _ in chosen]
        dist.all_gather(parts, torch.tensor([float(world.rank)]), group=group)
        results.append([x, root, *parts])
    assert all(map(torch.equal, *results)), results


@cases.add()
def groups_side_by_side(world: World) -> None:
    """Even and odd ranks have their own groups, in addition to a group of all ranks."""
    halves = [[r for r in range(world.size) if r % 2 == p] for p in (0, 1)]
    groups = [dist.new_group(half, backend="mpi4py") for half in halves]
    own_group = groups[world.rank % 2]
    for _ in range(3):
        x, y = torch.ones(2), torch.ones(2)
        dist.all_reduce(x, group=own_group)
        dist.all_reduce(y, group=world.group)
        assert x[0] == len(halves[world.rank % 2]) and y[0] == world.size
    assert own_group.group_name != world.group.group_name
    dist.destroy_process_group(own_group)
    dist.all_reduce(y, group=world.group)


# Work


@cases.add()
def asynchronous_work(world: World) -> None:
    x = torch.ones(3)
    work = dist.all_reduce(x, group=world.group, async_op=True)
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.exception() is None
    (result,) = work.get_future().wait()
    assert result is x or torch.equal(result, x)
    assert x[0] == world.size


@cases.add()
def sends_do_not_block(world: World) -> None:
    """Each rank sends a large message before it receives one."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    x = torch.full((300_000,), float(world.rank))
    y = torch.empty_like(x)
    work = dist.isend(x, right, group=world.group)
    received = dist.irecv(y, left, group=world.group)
    received.wait()
    work.wait()
    assert received.is_completed() and work.is_completed()
    assert torch.equal(y, torch.full_like(y, float(left)))


@cases.add()
def a_dropped_send_keeps_its_memory(world: World) -> None:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for n in range(4):
        dist.isend(torch.full((200_000,), float(n)), right, group=world.group)
        torch.full((200_000,), -1.0)  # would get the memory if it had been freed
    dist.barrier(group=world.group)
    for n in range(4):
        y = torch.empty(200_000)
        dist.recv(y, left, group=world.group)
        assert torch.equal(y, torch.full_like(y, float(n)))


@cases.add()
def tags_choose_messages(world: World) -> None:
    if world.rank == 0:
        for tag in (7, 8, 9):
            dist.isend(torch.tensor([float(tag)]), 1, group=world.group, tag=tag)
    elif world.rank == 1:
        for tag in (9, 7, 8):
            y = torch.empty(1)
            dist.recv(y, 0, group=world.group, tag=tag)
            assert y.item() == tag
    dist.barrier(group=world.group)


@cases.add()
def receiving_from_any_rank(world: World) -> None:
    if world.rank:
        dist.send(torch.tensor([float(world.rank)]), 0, group=world.group)
        return
    seen = set()
    for _ in range(world.size - 1):
        y = torch.empty(1)
        source = dist.recv(y, group=world.group)
        assert y.item() == source
        seen.add(source)
    assert seen == set(range(1, world.size))


@cases.add()
def sending_to_oneself(world: World) -> None:
    work = dist.isend(torch.arange(3.0), world.rank, group=world.group)
    y = torch.empty(3)
    dist.irecv(y, world.rank, group=world.group).wait()
    work.wait()
    assert torch.equal(y, torch.arange(3.0))


@cases.add()
def waiting_with_a_timeout(world: World) -> None:
    y = torch.empty(1)
    work = dist.irecv(y, (world.rank - 1) % world.size, group=world.group, tag=3)
    with expecting(RuntimeError, "no matching send"):
        work.wait(timedelta(milliseconds=20))
    dist.barrier(group=world.group)
    dist.isend(torch.ones(1), (world.rank + 1) % world.size, group=world.group, tag=3)
    assert work.wait(timedelta(seconds=60)) and y.item() == 1


@cases.add()
def tensors_longer_than_mpi_counts(world: World) -> None:
    """This emulates more than 2³¹ elements, with a smaller limit instead of MPI's."""
    from parlab.runtime.torch_mpi import buffers

    limit, buffers.MAX_COUNT = buffers.MAX_COUNT, 10
    try:
        x = torch.arange(47.0) + world.rank
        dist.all_reduce(x, group=world.group)
        assert torch.equal(x, torch.arange(47.0) * world.size + sum(range(world.size)))
        dist.broadcast(x.copy_(torch.arange(47.0) * world.rank), 1, group=world.group)
        assert torch.equal(x, torch.arange(47.0))
        dist.reduce(x, 0, group=world.group)
        y = torch.empty(47)
        work = dist.isend(torch.arange(47.0), (world.rank + 1) % world.size, group=world.group)
        dist.recv(y, (world.rank - 1) % world.size, group=world.group)
        work.wait()
        assert torch.equal(y, torch.arange(47.0))
        with expecting(ValueError, "more than MPI counts"):
            dist.all_gather_single(torch.empty(47 * world.size), x, group=world.group)
    finally:
        buffers.MAX_COUNT = limit


# Errors


@cases.add()
def errors_say_what_to_do(world: World) -> None:
    group, n = world.group, world.size
    with expecting(ValueError, "pass tensor.cpu()"):
        dist.all_reduce(torch.empty(3, device="meta"), group=group)
    with expecting(ValueError, "to_dense"):
        dist.all_reduce(torch.eye(3).to_sparse(), group=group)
    with expecting(ValueError, "for integers and bool"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, group=group)
    with expecting(ValueError, "convert to float32"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn), group=group)
    with expecting(ValueError, f"it needs {3 * n}"):
        dist.all_gather_single(torch.empty(3 * n + 1), torch.ones(3), group=group)
    with expecting(ValueError, "is torch.float64"):
        dist.all_gather_single(torch.empty(3 * n).double(), torch.ones(3), group=group)
    with expecting(ValueError, f"it needs {3 * n}"):
        dist.reduce_scatter_single(torch.empty(3), torch.ones(3 * n - 1), group=group)
    with expecting(ValueError, "one tensor a rank"):
        dist.all_gather([torch.empty(1)] * (n + 1), torch.ones(1), group=group)
    with expecting(ValueError, "do not split evenly"):
        dist.all_to_all_single(torch.empty(n + 1), torch.ones(n + 1), group=group)
    with expecting(ValueError, "input_split_sizes must be"):
        dist.all_to_all_single(torch.empty(n), torch.ones(n), None, [n] * n, group=group)
