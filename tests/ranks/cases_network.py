"""Times on an emulated network: never shorter than in the model, and only a little longer.

The network is slow, so that delays of a busy machine are small compared with its times.
"""

from array import array
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parlab import network
from parlab.network import Link, Network, Stage, compute
from parlab.network.clock import now
from parlab.network.links import Links
from parlab.runtime.torch_mpi.work import CompletedWork
from tests.support.on_ranks import Cases, World, expecting

cases = Cases()

# 4 ranks. A call costs 0.1 s, a float32 0.1 ms inside a node and 1 ms between nodes.
CALL = 0.1
NETWORK = Network(2, 2, Link(0, 0.1e-3 / 4), Link(0, 1e-3 / 4), CALL)
LATE = 0.08  # tolerated delay compared with the model (s)
TRIES = 12
NUMBERS = 100  # 0.1 s between nodes


def seconds_of(world: World, work: Callable[[], Any]) -> tuple[float, float]:
    """Return the time from the first rank's start, and from the last rank's start, to the last end.

    Both are the same on all ranks. They are very different if a busy machine delays a rank.
    """
    world.comm.Barrier()
    begun = now()
    work()
    ended = now()
    starts = world.comm.allgather(begun)
    end = max(world.comm.allgather(ended))
    return end - min(starts), end - max(starts)


def assert_takes(
    world: World, seconds: float, work: Callable[[], Any], needs_all: bool = True
) -> None:
    """Require that `work` never takes less than the model's time, and is on time at least once.

    A busy machine can only delay it, so a few attempts are allowed. `needs_all` is True if it
    begins when the last rank calls it. A message does not need ranks that neither send nor receive
    it, so its time may count from the first rank's start.
    """
    took = []
    for _ in range(TRIES):
        from_first, from_last = seconds_of(world, work)
        took.append(from_last)
        longest = from_last if needs_all else from_first
        assert seconds <= longest + 1e-4, f"took {longest} s, sooner than {seconds:.3f} s"
        if from_last < seconds + LATE:
            return
    raise AssertionError(f"took {took} s, later than {seconds:.3f} s")


def assert_in_time(
    world: World, seconds: float, measure: Callable[[], float], early: float = 1e-4
) -> None:
    """Require the same of the times that `measure` returns on each rank."""
    took = []
    for _ in range(TRIES):
        own = measure()
        took.append(max(world.comm.allgather(own)))
        assert seconds <= own + early, f"took {own} s, sooner than {seconds:.3f} s"
        if took[-1] < seconds + LATE:
            return
    raise AssertionError(f"took {took} s, later than {seconds:.3f} s")


def x(numbers: int = NUMBERS) -> torch.Tensor:
    return torch.ones(numbers)


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


# Queues


@cases.add()
def collectives_of_a_rank_queue(world: World) -> None:
    def three() -> None:
        works = [dist.all_reduce(x(), group=world.group, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    assert_takes(world, 3 * NETWORK.collective("all_reduce", 400).seconds, three)


@cases.add()
def collectives_of_two_groups_queue_where_they_share_a_link(world: World) -> None:
    pairs = [network.sub_group(world.group, pair) for pair in ([0, 2], [1, 3])]
    every = [world.group, pairs[world.rank % 2]]

    def both() -> None:
        works = []
        for group in every:
            works.append(dist.all_reduce(x(), group=group, async_op=True))
            world.comm.Barrier()  # all ranks have called the first before any calls the second
        for work in works:
            work.wait()

    whole = NETWORK.collective("all_reduce", 400).seconds
    pair = NETWORK.collective("all_reduce", 400, [0, 2]).seconds
    assert_takes(world, whole + pair, both)


@cases.add()
def a_collective_occupies_both_directions_of_its_links(world: World) -> None:
    links = Links(NETWORK, world.comm)
    for ends in ((0, 3), (1, 2)):  # the source or the destination is in the collective
        if world.rank == 0:
            with links.shared.locked() as free:
                free[:] = array("d", len(free) * [0.0])
                assert links.collective(0.0, 1.0, [0, 2]) == 1.0
            assert links.message(0.0, 400, *ends) == 1.0 + NETWORK.message(400, *ends), ends


@cases.add()
def a_node_and_the_network_do_not_queue_on_each_other(world: World) -> None:
    nodes = [network.sub_group(world.group, node) for node in ([0, 1], [2, 3])]
    pairs = [network.sub_group(world.group, pair) for pair in ([0, 2], [1, 3])]
    own = [nodes[world.rank // 2], pairs[world.rank % 2]]

    def both() -> None:
        works = [dist.all_reduce(x(1000), group=g, async_op=True) for g in own]
        for work in works:
            work.wait()

    inside = NETWORK.collective("all_reduce", 4000, [0, 1]).seconds
    between = NETWORK.collective("all_reduce", 4000, [0, 2]).seconds
    assert between > inside > LATE
    assert_takes(world, between, both)


@cases.add(pair=[(0, 1), (0, 2), (3, 0)])
def a_message_takes_what_the_model_says(world: World, pair: tuple[int, int]) -> None:
    source, destination = pair

    def send() -> None:
        if world.rank == source:
            dist.send(x(), destination, group=world.group)
        elif world.rank == destination:
            dist.recv(x(), source, group=world.group)

    assert_takes(world, NETWORK.message(400, source, destination), send, needs_all=False)


@cases.add()
def messages_queue_at_both_ends(world: World) -> None:
    """Rank 0 sends two messages, and rank 2 receives two. One of them is the same message."""
    messages = [(0, 2), (0, 3), (1, 2)]

    def send() -> None:
        works = [
            dist.isend(x(), there, group=world.group)
            if here == world.rank
            else dist.irecv(x(), here, group=world.group)
            for here, there in messages
            if world.rank in (here, there)
        ]
        for work in works:
            work.wait()

    assert_takes(world, 2 * NETWORK.message(400, 0, 2), send, needs_all=False)


@cases.add()
def messages_go_both_ways_at_once(world: World) -> None:
    other = (world.rank + 2) % 4

    def exchange() -> None:
        sent = dist.isend(x(), other, group=world.group)
        dist.recv(x(), other, group=world.group)
        sent.wait()

    assert_takes(world, NETWORK.message(400, 0, 2), exchange, needs_all=False)


@cases.add()
def a_message_travels_before_its_receiver_waits(world: World) -> None:
    """It starts when it is sent, and has arrived when the receiver waits for it."""

    def late() -> None:
        if world.rank == 0:
            dist.send(x(), 2, group=world.group)
        elif world.rank == 2:
            compute(0.4)
            dist.recv(x(), 0, group=world.group)

    assert_takes(world, 0.4, late, needs_all=False)


@cases.add()
def waits_in_another_order_than_sent(world: World) -> None:
    """If the second message is waited for first, it ends at its own time."""
    again = []
    for _ in range(4):
        world.comm.Barrier()
        if world.rank == 0:
            begun = now()
            dist.isend(torch.ones(1), 2, group=world.group)
            dist.send(torch.full((100,), 2.0), 2, group=world.group)
            world.comm.send(begun, 2)
        elif world.rank == 2:
            first, second = torch.zeros(1), torch.zeros(100)
            works = [dist.irecv(t, 0, group=world.group) for t in (first, second)]
            works[1].wait()
            second_came = now()
            works[0].wait()
            again.append(now() - second_came)
            assert second_came - world.comm.recv(source=0) > 2 * CALL
            assert first[0] == 1 and second[0] == 2
    assert world.rank != 2 or min(again) < CALL, f"the first message took {again} s more"


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
def many_incomplete_calls(world: World) -> None:
    """There are more calls than places for meetings."""
    quick = network.emulated_group(Network(1, 4, Link(0, 0), Link(0, 0)))
    numbers = [torch.ones(1) for _ in range(2500)]
    works = [dist.all_reduce(t, group=quick, async_op=True) for t in numbers]
    for work in works:
        work.wait()
    assert all(t.item() == 4 for t in numbers)


@cases.add(op=["MAX", "MIN", "PRODUCT", "AVG"])
def reductions_other_than_sums(world: World, op: str) -> None:
    quick = network.emulated_group(Network(1, 4, Link(0, 0), Link(0, 0)))
    numbers = torch.full((3,), float(world.rank + 1))
    dist.all_reduce(numbers, getattr(dist.ReduceOp, op), group=quick)
    assert numbers[0] == {"MAX": 4, "MIN": 1, "PRODUCT": 24, "AVG": 2.5}[op]


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
