"""Training on the mpi4py group: DDP, ZeRO, gradients through collectives."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.on_ranks import Cases, World

cases = Cases()


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
