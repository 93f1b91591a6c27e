"""The mpi4py group in use: sub-groups, DDP, ZeRO, asynchronous work, errors, recovery."""

import copy
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


# Training


class Model(nn.Module):
    """Two layers with a tied weight, a frozen one, and one that odd batches do not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.frozen, self.sometimes = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor, use_all: bool = True) -> torch.Tensor:
        y = self.frozen(torch.relu(self.second(torch.relu(self.first(x)))))
        return y + self.sometimes(x) if use_all else y


def batches(size: int) -> list[torch.Tensor]:
    return [torch.randn(5, 6, generator=torch.Generator().manual_seed(r)) for r in range(size)]


def assert_same_gradients(model: nn.Module, reference: nn.Module) -> None:
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, msg=lambda m, n=name: f"{n}: {m}")


@cases.add(unused=[False, True], bucket_cap_mb=[25, 0.0001])
def ddp_gives_the_gradient_of_the_whole_batch(
    world: World, unused: bool, bucket_cap_mb: float
) -> None:
    reference, model = Model(), Model()
    if world.rank:  # DDP broadcasts rank 0's parameters and buffers
        nn.init.zeros_(model.first.weight)
        model.seen.fill_(7)
    ddp = DistributedDataParallel(
        model,
        process_group=world.group,
        find_unused_parameters=unused,
        bucket_cap_mb=bucket_cap_mb,
    )
    assert model.seen == 0
    data = batches(world.size)
    for _ in range(3):
        # If some parameters are unused, only rank 0 uses all.
        ddp(data[world.rank], not unused or world.rank == 0).square().mean().backward()
        for r, x in enumerate(data):
            loss = reference(x, not unused or r == 0).square().mean()
            (loss / world.size).backward()
        assert_same_gradients(model, reference)


@cases.add()
def ddp_without_synchronization(world: World) -> None:
    reference, model = Model(), Model()
    ddp = DistributedDataParallel(model, process_group=world.group)
    data = batches(2 * world.size)
    with ddp.no_sync():
        ddp(data[world.rank]).sum().backward()
    ddp(data[world.size + world.rank]).sum().backward()
    for x in data:
        (reference(x).sum() / world.size).backward()
    assert_same_gradients(model, reference)


@cases.add(hook=["allreduce_hook", "fp16_compress_hook"])
def ddp_with_a_communication_hook(world: World, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    reference, model = Model(), Model()
    ddp = DistributedDataParallel(model, process_group=world.group)
    ddp.register_comm_hook(world.group, getattr(default_hooks, hook))
    data = batches(world.size)
    ddp(data[world.rank]).square().mean().backward()
    for x in data:
        (reference(x).square().mean() / world.size).backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        if q.grad is not None:
            exact = hook == "allreduce_hook"
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-5 if exact else 0.05, atol=1e-3)


@cases.add()
def ddp_by_a_hook_of_futures(world: World) -> None:
    """The hook adds a callback to the future of an asynchronous all-reduce, as in labs."""
    model = nn.Linear(4, 3, bias=False)
    nn.init.ones_(model.weight)
    ddp = DistributedDataParallel(model, process_group=world.group)

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), group=world.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / world.size)

    ddp.register_comm_hook(None, hook)
    ddp(torch.full((1, 4), float(world.rank))).sum().backward()
    mean = sum(range(world.size)) / world.size
    assert torch.equal(model.weight.grad, torch.full((3, 4), mean))


@cases.add()
def ddp_with_uneven_inputs(world: World) -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model, process_group=world.group)
    with ddp.join():
        for _ in range(world.rank + 1):
            ddp(torch.ones(1, 2)).sum().backward()
    assert torch.isfinite(model.weight.grad).all()


@cases.add()
def zero_redundancy_optimizer(world: World) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    reference, model = Model(), Model()
    serial = torch.optim.Adam(reference.parameters(), lr=0.01)
    ddp = DistributedDataParallel(model, process_group=world.group)
    sharded = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=world.group, lr=0.01
    )
    data = batches(world.size)
    for _ in range(3):
        sharded.zero_grad()
        serial.zero_grad()
        ddp(data[world.rank]).square().mean().backward()
        for x in data:
            (reference(x).square().mean() / world.size).backward()
        sharded.step()
        serial.step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    sharded.consolidate_state_dict(to=0)
    if world.rank == 0:
        assert len(sharded.state_dict()["state"]) == len(serial.state_dict()["state"])


@cases.add()
def differentiable_all_reduce(world: World) -> None:
    from torch.distributed.nn import functional

    x = torch.full((3,), float(world.rank + 1), requires_grad=True)
    functional.all_reduce(x * 2, group=world.group).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0 * world.size))


@cases.add()
def parameters_that_require_gradients(world: World) -> None:
    p = nn.Parameter(torch.full((4, 3), float(world.rank)))
    dist.broadcast(p, 1, group=world.group)
    assert torch.equal(p.data, torch.ones(4, 3)) and p.requires_grad
    turned = nn.Parameter(torch.full((4, 3), float(world.rank)).t())
    dist.all_reduce(turned, group=world.group)
    assert turned[0, 0].item() == sum(range(world.size))


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


# Freeing and recovery


@cases.add(call=["all_reduce", "recv", "wait", "barrier", "broadcast"])
def revoking_frees_a_blocked_rank(world: World, call: str) -> None:
    """Rank 0 does not call it, and the others wait until a thread on each of them revokes."""
    from mpi4py import MPI

    from parlab.runtime.torch_mpi.group import MPIGroup

    group = MPIGroup(world.comm.Dup())
    world.comm.Barrier()  # Open MPI crashes if a communicator is revoked while it is made
    if world.rank == 0:
        return
    blocked = {
        "all_reduce": lambda: group.allreduce([torch.ones(4)]),
        "recv": lambda: group.recv([torch.ones(4)], 0).wait(),
        "wait": lambda: group.recv_anysource([torch.ones(4)]).wait(),
        "barrier": lambda: group.barrier(),
        "broadcast": lambda: group.broadcast([torch.ones(4)], dist.BroadcastOptions()),
    }
    timer = threading.Timer(0.3, group.comm.Revoke)
    timer.start()
    start = time.monotonic()
    with expecting(MPI.Exception, "REVOKED"):
        blocked[call]()
    assert time.monotonic() - start < 30
    timer.join()


@cases.add()
def the_same_object_after_a_new_start(world: World) -> None:
    """As in recovery, torch.distributed is restarted, and `group` still works."""
    from parlab.rank import torch_groups
    from parlab.runtime.torch_mpi.group import MPIGroup

    before, model = world.group, nn.Linear(3, 2)
    x = torch.ones(2)
    torch_groups._state["closed"] = True
    assert torch_groups.renew()
    assert dist.get_world_size(before) == world.size
    dist.all_reduce(x, group=before)
    assert x[0] == world.size
    ddp = DistributedDataParallel(copy.deepcopy(model), process_group=before)
    ddp(torch.ones(1, 3)).sum().backward()
    sub = dist.new_group([0, 1], backend="mpi4py")
    if world.rank < 2:
        dist.all_reduce(x, group=sub)
        assert x[0] == 2 * world.size
    everyone = dist.new_group(backend="mpi4py")
    assert everyone is not before and isinstance(everyone, MPIGroup)
    dist.all_reduce(x.fill_(1), group=everyone)
    assert x[0] == world.size


@cases.add()
def a_renewed_handle_is_used(world: World) -> None:
    """Recovery puts the handle of a new communicator into the same mpi4py object."""
    from parlab.rank import world as ranks
    from parlab.runtime.torch_mpi.group import MPIGroup

    group = MPIGroup(ranks.new_communicator())
    world.comm.Barrier()  # Open MPI crashes if a communicator is revoked while it is made
    group.comm.Revoke()
    while not group.comm.Is_revoked():
        time.sleep(0.001)
    ranks.renew()
    x = torch.ones(2)
    group.allreduce([x])
    assert x[0] == world.size
