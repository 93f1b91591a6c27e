"""Times and results of collectives on an emulated network, and its groups."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from parlab import network
from parlab.network import Link, Network, compute
from parlab.network.clock import now
from parlab.runtime.torch_mpi.work import CompletedWork
from tests.ranks.network_times import NETWORK, NUMBERS, assert_in_time, assert_takes, x
from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


# Collectives, each with its name in the model, the bytes that count, and the call.

N = 4
COLLECTIVES: dict[str, tuple[str, int, Callable[[Any, int], Any]]] = {
    "all_reduce": ("all_reduce", 400, lambda g, r: dist.all_reduce(x(), group=g)),
    "all_reduce_async": (
        "all_reduce",
        400,
        lambda g, r: dist.all_reduce(x(), group=g, async_op=True).wait(),
    ),
    "broadcast": ("broadcast", 400, lambda g, r: dist.broadcast(x(), 3, group=g)),
    "reduce": ("reduce", 400, lambda g, r: dist.reduce(x(), 2, group=g)),
    "all_gather": (
        "all_gather",
        N * 400,
        lambda g, r: dist.all_gather([x() for _ in range(N)], x(), group=g),
    ),
    "all_gather_single": (
        "all_gather",
        N * 400,
        lambda g, r: dist.all_gather_single(x(N * NUMBERS), x(), group=g),
    ),
    "reduce_scatter": (
        "reduce_scatter",
        N * 400,
        lambda g, r: dist.reduce_scatter(x(), [x() for _ in range(N)], group=g),
    ),
    "reduce_scatter_single": (
        "reduce_scatter",
        N * 400,
        lambda g, r: dist.reduce_scatter_single(x(), x(N * NUMBERS), group=g),
    ),
    "gather": (
        "gather",
        N * 400,
        lambda g, r: dist.gather(x(), [x() for _ in range(N)] if r == 1 else None, 1, group=g),
    ),
    "scatter": (
        "scatter",
        N * 400,
        lambda g, r: dist.scatter(x(), [x() for _ in range(N)] if r == 1 else None, 1, group=g),
    ),
    "all_to_all": (
        "all_to_all",
        N * 400,
        lambda g, r: dist.all_to_all([x() for _ in range(N)], [x() for _ in range(N)], group=g),
    ),
    "all_to_all_single": (
        "all_to_all",
        400,
        lambda g, r: dist.all_to_all_single(x(), x(), group=g),
    ),
    "barrier": ("barrier", 0, lambda g, r: dist.barrier(group=g)),
}


@cases.add(call=list(COLLECTIVES))
def a_collective_takes_what_the_model_says(world: World, call: str) -> None:
    name, size, run = COLLECTIVES[call]
    assert_takes(
        world,
        NETWORK.collective(name, size).seconds,
        lambda: run(world.group, world.rank),
    )


@cases.add()
def a_collective_starts_when_the_last_rank_calls_it(world: World) -> None:
    late = world.size - 1

    def from_when_it_came() -> float:
        world.comm.Barrier()
        compute(0.3 if world.rank == late else 0)
        came = now()
        dist.all_reduce(x(), group=world.group)
        ended = now()
        return ended - world.comm.bcast(came, root=late)

    assert_in_time(world, NETWORK.collective("all_reduce", 400).seconds, from_when_it_came)


@cases.add()
def a_collective_starts_at_the_call(world: World) -> None:
    """The time from the call until the rank joins the meeting is not part of the model."""
    expected = NETWORK.collective("all_reduce", 400).seconds
    nothing: Callable[[], dist.Work] = lambda: CompletedWork([])  # noqa: E731

    def slow_way() -> None:
        called = now()
        compute(0.6 * expected)
        world.group.collective(called, "all_reduce", 400, nothing, in_background=False).wait()

    assert_takes(world, expected, slow_way)


@cases.add(length=[0, 1, 3, 300_001], dtype=[torch.float32, torch.float64])
def sums_are_the_same_bits_on_all_ranks(world: World, length: int, dtype: torch.dtype) -> None:
    """Sums are computed in the order of the ranks, in several pieces if necessary."""
    quick = network.emulated_group(Network(1, 4, Link(0, 0), Link(0, 0)))
    own = [torch.rand(length, dtype=dtype, generator=_generator(r)) for r in range(world.size)]
    right = own[0] + own[1] + own[2] + own[3]
    for _ in range(2):
        numbers = own[world.rank].clone()
        dist.all_reduce(numbers, group=quick)
        assert torch.equal(numbers, right)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cases.add()
def an_asynchronous_call_does_not_wait(world: World) -> None:
    did_not_wait = []

    def from_when_the_last_came() -> float:
        world.comm.Barrier()
        compute(0.2 * world.rank)
        begun, numbers = now(), x()
        work = dist.all_reduce(numbers, group=world.group, async_op=True)
        returned = now()
        is_early = not work.is_completed()
        came = max(world.comm.allgather(begun))
        did_not_wait.append(is_early and (world.rank > 0 or returned < came))
        work.wait()
        ended = now()
        assert work.is_completed() and work.is_success() and numbers[0] == world.size
        return ended - came

    assert_in_time(world, NETWORK.collective("all_reduce", 400).seconds, from_when_the_last_came)
    assert any(did_not_wait)


@cases.add(op=["MAX", "MIN", "PRODUCT", "AVG"])
def reductions_other_than_sums(world: World, op: str) -> None:
    quick = network.emulated_group(Network(1, 4, Link(0, 0), Link(0, 0)))
    numbers = torch.full((3,), float(world.rank + 1))
    dist.all_reduce(numbers, getattr(dist.ReduceOp, op), group=quick)
    assert numbers[0] == {"MAX": 4, "MIN": 1, "PRODUCT": 24, "AVG": 2.5}[op]


@cases.add()
def many_incomplete_calls(world: World) -> None:
    """There are more calls than places for meetings."""
    quick = network.emulated_group(Network(1, 4, Link(0, 0), Link(0, 0)))
    numbers = [torch.ones(1) for _ in range(2500)]
    works = [dist.all_reduce(t, group=quick, async_op=True) for t in numbers]
    for work in works:
        work.wait()
    assert all(t.item() == 4 for t in numbers)


# Groups


@cases.add()
def a_group_of_its_own_network(world: World) -> None:
    other = network.emulated_group(Network(4, 1, Link(0, 0), Link(0.2, 0)))
    assert_takes(world, 0.4, lambda: dist.all_reduce(x(), group=other))
    assert "4 nodes of 1 rank" in repr(other) and "emulated" in repr(other)
    part = network.sub_group(other, [1, 3])
    if world.rank in (1, 3):
        numbers = x()
        dist.all_reduce(numbers, group=part)
        assert numbers[0] == 2 and dist.get_world_size(part) == 2
    else:
        assert part == dist.GroupMember.NON_GROUP_MEMBER
    with expecting(ValueError, "of all ranks"):
        network.sub_group(part, [1])


@cases.add()
def a_network_of_other_ranks_is_refused(world: World) -> None:
    with expecting(ValueError, "the network has 2 × 3 ranks, and 4 are running"):
        network.emulated_group(Network(2, 3, Link(0, 0), Link(0, 0)))


@cases.add()
def sums_of_different_sizes_are_refused(world: World) -> None:
    group = network.emulated_group(NETWORK)
    with expecting(ValueError, "different sizes: 5, 10 elements"):
        dist.all_reduce(torch.ones(10 if world.rank == 0 else 5), group=group)
    numbers = torch.ones(3)
    dist.all_reduce(numbers, group=group)
    assert numbers.tolist() == [world.size] * 3
