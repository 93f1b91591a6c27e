"""Exercise `bucketed_data_parallel`: whole buckets, during the backward pass, in one order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn

from parlab.checks.base import Check, fresh_seed
from parlab.checks.data_parallel.buckets import Names, bucket_names, packed, trainable_bytes
from parlab.checks.data_parallel.common import (
    State,
    add,
    all_equal,
    awkward_model,
    first_difference,
    gradients,
    gradients_of,
    on,
    tokens_for,
)
from parlab.checks.data_parallel.gradients import uneven_shards
from parlab.checks.data_parallel.late_group import Event, LateGroup
from parlab.models import Awkward

Wrapper = Callable[[nn.Module, LateGroup, int], nn.Module]


@dataclass
class Step:
    """One training step on this rank: what happened in it, and the gradients after it."""

    events: list[Event]
    gradients: State


class Reversed(nn.Module):
    """Layers used in the other order than they are listed: the first bucket is ready last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3)).double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


def bucketed_data_parallel(wrapper: Wrapper) -> None:
    """Check values, and the order of events, over two steps, on 1, 2, … ranks."""
    check = Check("bucketed_data_parallel")
    for world_size in range(1, check.world_size + 1):
        seed = fresh_seed()
        # Every rank has samples in the first step; in the second, one has none.
        shards = [[2 + r for r in range(world_size)], uneven_shards(world_size, seed)[-1]]
        model = awkward_model(seed, seed + check.rank)
        limit = max(trainable_bytes(model).values())
        with check.communicator(list(range(world_size))) as comm:
            data = [
                [tokens_for(model, n, seed + 10 * s + r) for r, n in enumerate(samples)]
                for s, samples in enumerate(shards)
            ]
            steps = check.call(
                _train, wrapper, model, comm, limit, data,
                comm=comm, situation=on(world_size),
            )  # fmt: skip
            problem = None
            if comm is not None:
                problem = _judge(steps, model, limit, data, check.rank, seed)
            check.agree(problem and f"{problem} ({on(world_size)})", among=world_size, comm=comm)
    _same_order(check, wrapper)
    check.passed("whole buckets start during backward, in one order on all ranks, and are awaited")


def _train(
    wrapper: Wrapper,
    model: Awkward,
    comm: MPI.Intracomm,
    limit: int,
    data: list[list[tuple[Tensor, Tensor]]],
) -> tuple[Names | str, list[Step]]:
    """The buckets that the wrapper made, and what happened in each step."""
    group = LateGroup(comm)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda _, name=name: group.events.append(Event("ready", name))
            )
    parallel = wrapper(model, group, limit)
    steps = []
    for shards in data:
        group.take_events()
        parallel.zero_grad()
        inputs, targets = shards[comm.rank]
        if len(inputs):
            share = len(inputs) / sum(len(shard[0]) for shard in shards)
            (share * F.cross_entropy(parallel(inputs), targets)).backward()
            group.events.append(Event("backward ends"))
        parallel.finish()
        steps.append(Step(group.take_events(), gradients_of(model)))
    return bucket_names(parallel.buckets, model), steps


def _judge(
    trained: tuple[Names | str, list[Step]],
    model: Awkward,
    limit: int,
    data: list[list[tuple[Tensor, Tensor]]],
    rank: int,
    seed: int,
) -> str | None:
    buckets, steps = trained
    sizes = trainable_bytes(model)
    if buckets != packed(sizes, limit):
        return "the buckets are not right yet: see check.assign_buckets"
    for number, (step, shards) in enumerate(zip(steps, data, strict=True)):
        problem = _order(step.events, buckets, sizes) or _values(step, model, shards, rank)
        if problem:
            if not number:
                return problem
            return (
                "the second step goes wrong where the first was right: is everything ready for "
                f"the next step when finish() returns, by self.restart()? {problem}"
            )
    return None


def _order(events: Sequence[Event], buckets: Names, sizes: dict[str, int]) -> str | None:
    """Whether the all-reduces cover whole buckets, start when they can, and are awaited."""
    starts = [event for event in events if event.kind == "start"]
    if len(starts) > len(buckets):
        return (
            f"{len(starts)} all-reduces for {len(buckets)} buckets: one for each gradient? A "
            "bucket is sent once, when the last of its gradients is ready"
        )
    if len(starts) < len(buckets):
        return (
            f"{len(starts)} all-reduces for {len(buckets)} buckets: a parameter that no gradient "
            "reaches never calls gradient_ready, so finish() must start the buckets that are left"
        )
    expected = [sum(sizes[name] for name in bucket) for bucket in buckets]
    if [start.bytes for start in starts] != expected:
        got = [start.bytes for start in starts]
        return f"the all-reduces have {got} bytes where buckets 0, 1, … have {expected}"
    return _overlap(events, buckets) or _awaited(events, len(buckets))


def _overlap(events: Sequence[Event], buckets: Names) -> str | None:
    ready = {event.what: at for at, event in enumerate(events) if event.kind == "ready"}
    if not ready:  # this rank had no backward pass
        return None
    ends = next(at for at, event in enumerate(events) if event.kind == "backward ends")
    starts = {event.what: at for at, event in enumerate(events) if event.kind == "start"}
    waits = [at for at, event in enumerate(events) if event.kind == "wait"]
    if any(at < ends for at in waits):
        return (
            "the backward pass stops and waits for each all-reduce: async_op=True returns a handle "
            "at once, to be waited for in finish()"
        )
    possible = 0
    for i, bucket in enumerate(buckets):
        if not all(name in ready for name in bucket):
            break  # finish() starts this one, and those after it
        late = [name for name in bucket if ready[name] > starts[i]]
        if late:
            return (
                f"bucket {i} starts before the gradient of {late[0]} is ready: it sends what was "
                "there before. Count down the gradients that are missing"
            )
        possible = max(possible, *(ready[name] for name in bucket))
        if starts[i] > ends:
            return (
                f"bucket {i} is complete during the backward pass and starts only after it: "
                "nothing overlaps"
            )
        later = [name for name, at in ready.items() if possible < at < starts[i]]
        if later:
            return f"bucket {i} could start before the gradient of {later[0]} is ready, and waits"
    return None


def _awaited(events: Sequence[Event], count: int) -> str | None:
    waited = sum(event.kind == "wait" for event in events)
    if waited == count:
        return None
    return (
        f"finish() returned while {count - waited} of {count} all-reduces were under way: the "
        "optimizer would read gradients that are still changing. wait() for every handle"
    )


def _values(
    step: Step, model: Awkward, shards: list[tuple[Tensor, Tensor]], rank: int
) -> str | None:
    total = sum(len(inputs) for inputs, _ in shards)
    shares = [len(inputs) / total for inputs, _ in shards]
    local = [gradients(model, *shard) for shard in shards]
    right = add(local, shares)
    difference = first_difference(step.gradients, right)
    if difference is None:
        return None
    if all_equal(step.gradients, add([right], [1 / len(shards)])):
        return (
            "the gradients are divided by the number of ranks once too often: the loss has its "
            "weight already, so here they are only summed"
        )
    if all_equal(step.gradients, add([local[rank]], [shares[rank]])):
        return "every rank has its own gradients only: nothing was summed over the ranks"
    return difference


def _same_order(check: Check, wrapper: Wrapper) -> None:
    """Buckets must not start in the order in which they happen to be complete."""
    with check.communicator() as comm:
        model = Reversed()

        def run() -> list[Event]:
            group = LateGroup(comm)
            parallel = wrapper(model, group, 1)  # one bucket a parameter
            group.take_events()
            parallel(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
            events = group.take_events()
            parallel.finish()
            places = {buffer.data_ptr(): i for i, buffer in enumerate(parallel.buffers)}
            return [places.get(e.address, -1) for e in events if e.kind == "start"]

        order = check.call(run, comm=comm)
    problem = None
    if order != sorted(order):
        problem = (
            f"buckets start in the order {order}, as they are complete. A model may finish its "
            "gradients in another order on another rank, and the ranks would add up buckets that "
            "do not belong together: bucket 1 must wait until bucket 0 has started"
        )
    check.agree(problem)
