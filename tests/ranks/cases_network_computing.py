"""Computation on an emulated network: it overlaps with messages, and stages take a set time."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parlab.network import Stage, compute
from parlab.network.clock import now
from tests.ranks.network_times import NETWORK, TRIES, assert_in_time, assert_takes, x
from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


# Overlap


def busy(seconds: float) -> None:
    """Compute on the CPU, for about `seconds` if a core is free."""
    end, matrix = now() + seconds, torch.rand(64, 64)
    while now() < end:
        matrix = torch.tanh(matrix @ matrix)


@cases.add(computing=[compute, busy])
def computing_during_a_message_takes_the_longer_of_both_times(
    world: World, computing: Callable[[float], None]
) -> None:
    expected = NETWORK.collective("all_reduce", 400).seconds

    def during_message(seconds: float) -> None:
        work = dist.all_reduce(x(), group=world.group, async_op=True)
        computing(seconds)
        work.wait()

    assert_takes(world, expected, lambda: during_message(0.8 * expected))
    assert_takes(world, 1.5 * expected, lambda: during_message(1.5 * expected))


@cases.add()
def a_future_is_done_at_the_end_and_not_before(world: World) -> None:
    expected = NETWORK.collective("all_reduce", 400).seconds

    was_early = []

    def until_it_is_done() -> float:
        seen = []
        world.comm.Barrier()
        begun = now()
        work = dist.all_reduce(x(), group=world.group, async_op=True)
        future = work.get_future().then(lambda f: seen.append(now()) or f.value()[0] / world.size)
        was_early.append(not future.done())
        assert torch.equal(future.wait(), x())
        assert work.get_future().done() and work.get_future() is work.get_future()
        return seen[0] - begun

    assert_in_time(world, expected, until_it_is_done, early=0.01)
    assert any(was_early)
    again = dist.all_reduce(x(), group=world.group, async_op=True)
    again.wait()
    assert torch.equal(again.get_future().wait()[0], world.size * x())


@cases.add()
def asynchronous_calls_keep_their_order(world: World) -> None:
    numbers = torch.full((3,), float(world.rank + 1))
    works = [
        dist.all_reduce(numbers, group=world.group, async_op=True),
        dist.broadcast(numbers, 1, group=world.group, async_op=True),
        dist.all_reduce(numbers, group=world.group, async_op=True),
    ]
    works[2].wait()
    assert torch.equal(numbers, torch.full((3,), 40.0))  # (1 + 2 + 3 + 4) · 4
    assert all(work.is_completed() for work in works)


@cases.add()
def ddp_hides_its_buckets_behind_the_backward_pass(world: World) -> None:
    layers, backward = 3, 0.3
    linear = [nn.Linear(10, 10, bias=False) for _ in range(layers)]  # 400 bytes each
    model = nn.Sequential(*(Stage(layer, 0, backward) for layer in linear))
    parallel = DistributedDataParallel(model, process_group=world.group, bucket_cap_mb=1e-6)
    inputs = torch.rand(2, 10)
    one_bucket = NETWORK.collective("all_reduce", 400).seconds
    assert one_bucket < backward
    world.comm.Barrier()

    def step() -> None:
        parallel.zero_grad()
        parallel(inputs).sum().backward()

    step()
    step()  # begins with new buckets, in the order of the first backward pass, on which ranks agree
    assert_takes(world, layers * backward + one_bucket, step)

    gradient = linear[0].weight.grad.clone()
    with parallel.no_sync():
        step()
    dist.all_reduce(linear[0].weight.grad, group=world.group)
    torch.testing.assert_close(gradient, linear[0].weight.grad / world.size)


# Stages


class Slow(nn.Linear):
    """A layer whose own forward and backward passes each take 0.1 s."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        compute(0.1)
        y = super().forward(x)
        y.register_hook(lambda gradient: compute(0.1))
        return y


@cases.add()
def the_time_of_the_module_itself_is_part_of_the_set_time(world: World) -> None:
    module, times_of_gradient = Slow(3, 2), []
    module.weight.register_post_accumulate_grad_hook(lambda _: times_of_gradient.append(now()))
    took = []
    for _ in range(TRIES):
        begun = now()
        outputs = Stage(module, forward=0.3, backward=0.4)(torch.rand(5, 3))
        between = now()
        outputs.sum().backward()
        took.append((between - begun, now() - between))
        assert took[-1][0] >= 0.3 and times_of_gradient[-1] - between >= 0.4
        if took[-1][0] < 0.4 and took[-1][1] < 0.5:
            return
    raise AssertionError(f"took {took} s, forward and backward")


@cases.add()
def a_stage_ignores_what_needs_no_gradient(world: World) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    module[0].requires_grad_(False)
    module.unused = nn.Parameter(torch.ones(1))
    Stage(module, 0, 0)(torch.rand(5, 3)).sum().backward()
    assert module[0].weight.grad is None and module.unused.grad is None
    assert module[2].weight.grad is not None and module[1].num_batches_tracked == 1
    with torch.no_grad():
        assert not Stage(module, 0, 0)(torch.rand(5, 3)).requires_grad
    assert not Stage(nn.ReLU(), 0, 0)(torch.rand(3)).requires_grad


@cases.add()
def a_stage_computes_its_module_in_a_set_time(world: World) -> None:
    module = nn.Linear(3, 2)
    inputs = torch.rand(5, 3, requires_grad=True)
    stage = Stage(module, forward=0.1, backward=0.2)

    def forward() -> float:
        begun = now()
        stage(inputs)
        return now() - begun

    def backward() -> float:
        inputs.grad = None
        module.zero_grad()
        outputs = stage(inputs)
        begun = now()
        outputs.square().sum().backward()
        return now() - begun

    assert_in_time(world, 0.1, forward)
    assert_in_time(world, 0.2, backward)
    got = [inputs.grad.clone(), *(p.grad.clone() for p in module.parameters())]
    inputs.grad = None
    module.zero_grad()
    module(inputs).square().sum().backward()
    right = [inputs.grad, *(p.grad for p in module.parameters())]
    assert all(map(torch.equal, got, right))
    with expecting(ValueError, "backward takes 0 s or more"):
        Stage(module, 0.1, -1)
    with expecting(ValueError, "0 s or more"):
        compute(float("nan"))
