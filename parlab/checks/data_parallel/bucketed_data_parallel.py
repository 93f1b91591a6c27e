"""Exercise `bucketed_data_parallel`."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base import models
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import same_states
from parlab.checks.base.late_group import Event, RecordingGroup, places
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import State
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel import _sums
from parlab.checks.data_parallel._buckets import Names, bucket_names, filled, trainable_bytes
from parlab.checks.data_parallel._models import awkward_model, gradients_of, inside

MISTAKES = Mistakes(
    divided_again=_sums.MISTAKES.texts["divided_again"],
    left_out=(
        "{got} all-reduces for {right} buckets. A parameter without a gradient never calls "
        "gradient_ready, so finish() must start the remaining buckets"
    ),
    blocking=(
        "the backward pass waits for an all-reduce. Start it with async_op=True, and wait for the "
        "returned handle in finish()"
    ),
    too_early=(
        "bucket {i} starts before all of its gradients are ready. Start the buckets in order, each "
        "one as soon as none of its own gradients is missing"
    ),
    no_overlap=(
        "{got} buckets start during the backward pass, expected {right}, which are complete by "
        "then. A bucket that starts later cannot overlap with the backward pass"
    ),
    as_they_come=(
        "the buckets start in the order {order}. The order in which they are complete may differ "
        "between ranks, and would add up different buckets. Start bucket 1 only after bucket 0"
    ),
    not_awaited=(
        "finish() returns while {got} of {right} all-reduces are running, so the optimizer would "
        "read gradients that still change. Wait for every handle"
    ),
    left_the_buffers=(
        "the gradient of {name} is no longer part of a buffer, so the next all-reduce misses it. "
        "Keep each .grad, and change it or zero it only in place"
    ),
)


Loss = Callable[[nn.Module], Tensor]


@dataclass
class Step:
    """The events of one training step on this rank, and the state after it."""

    events: list[Event]
    gradients: State
    buckets: Names
    buffers: list[int]  # their addresses
    outside: list[str]  # parameters whose gradient is in no buffer


class Layers(nn.Module):
    """Layers 0, 1, 2, … in the model's order, used in another order, or not at all."""

    def __init__(self, listed: int, used: Sequence[int]) -> None:
        super().__init__()
        self.used = used
        self.layers = nn.ModuleList(nn.Linear(5, 5, bias=False) for _ in range(listed)).double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.used:
            x = torch.tanh(self.layers[layer](x))
        return x


@check_of(MISTAKES)
def bucketed_data_parallel(check: Check) -> str:
    """Check values, and the order of events, over three steps, on 1, 2, … ranks."""
    orders = [0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 3]
    with check.trial() as trial:
        for _, used in trial.cases({f"four layers, used in the order {n}": n for n in orders}):
            model = Layers(4, used)
            x, sizes = torch.ones(2, 5, dtype=torch.float64), trainable_bytes(model)
            passes = [[lambda model, x=x: model(x).sum()]] * 2
            steps = trial.run_function(_train, trial, model, 1, passes)
            for _, step in trial.cases({"step 1": steps[0], "step 2": steps[1]}):
                trial.require(lambda step=step, sizes=sizes: in_order(step, sizes, 1))
    for trial in check.trials():
        _three_steps(trial)
    return (
        "each bucket starts as soon as it is complete and its turn has come, in one order on all "
        "ranks; all are awaited; gradients are summed, step after step, and after no_sync()"
    )


def _three_steps(trial: Trial) -> None:
    """Check three steps: a rank may have no samples in the second, and the third has two passes."""
    model = awkward_model(trial.draw, trial.rank)
    start, sizes = trial.gather(copy.deepcopy(model))[0], trainable_bytes(model)
    limit, uneven = max(sizes.values()), models.uneven_shards(trial.draw, trial.size)
    plan = [[uneven[0]], [uneven[-1]], [uneven[0], uneven[0]]]  # [step][pass][rank] → samples
    data = [[[models.tokens(trial.draw, model, n) for n in ns] for ns in step] for step in plan]
    samples_of = [[sum(ns) for ns in zip(*step, strict=True)] for step in plan]
    passes = [
        [_weighted_loss(*shards[trial.rank], sum(samples)) for shards in step]
        for step, samples in zip(data, samples_of, strict=True)
    ]
    own = [[loss for loss in step if loss] for step in passes]
    steps = trial.run_function(_train, trial, model, limit, own)
    everyone = trial.gather([step.gradients for step in steps or ()])
    cases = {f"step {i + 1}, samples on the ranks: {n}": i for i, n in enumerate(samples_of)}
    for _, number in trial.cases(cases):
        got, weights = [state[number] for state in everyone], _sums.rank_weights(samples_of[number])
        shards = [
            map(torch.cat, zip(*rank, strict=True)) for rank in zip(*data[number], strict=True)
        ]
        local = [models.gradients(start, *shard) for shard in shards]
        trial.require(
            lambda: in_order(steps[number], sizes, limit),
            lambda: in_buffers(steps[number], models.add(local, weights[0][0].tolist())),
            lambda: _sums.weighted_sum(got, local, weights, trial.rank),
        )


def _weighted_loss(inputs: Tensor, targets: Tensor, total: int) -> Loss | None:
    share = len(inputs) / total
    return (lambda model: share * F.cross_entropy(model(inputs), targets)) if share else None


def _train(trial: Trial, model: nn.Module, limit: int, steps: list[list[Loss]]) -> list[Step]:
    """Train with the learner's class. Only a step's last backward pass is not in no_sync()."""
    group = trial.group
    assert group is not None
    for name, parameter in models.trainable(model).items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: group.note("ready", name))
    parallel = trial.check.function(model, group, limit)
    return [_step(parallel, model, group, losses) for losses in steps]


def _step(parallel: nn.Module, model: nn.Module, group: RecordingGroup, losses: list[Loss]) -> Step:
    group.take_events()
    parallel.zero_grad()
    for loss in losses[:-1]:
        with parallel.no_sync():
            loss(parallel).backward()
    for loss in losses[-1:]:
        value = loss(parallel)
        group.note("last pass")
        value.backward()
        group.note("backward ends")
    parallel.finish()
    found, addresses = gradients_of(model), [b.data_ptr() for b in parallel.buffers]
    outside = [
        name
        for name, p in models.trainable(model).items()
        if not any(inside(p.grad, buffer) for buffer in parallel.buffers)
    ]
    names = bucket_names(parallel.buckets, model)
    return Step(group.take_events(), found, names, addresses, outside)


def in_buffers(step: Step, right: State) -> Finding | None:
    """Name the mistake if the gradients are wrong, and one of them has left the buffers."""
    if not step.outside or same_states(step.gradients, right, models.TOLERANCE):
        return None
    return MISTAKES.left_the_buffers(name=step.outside[0])


def in_order(step: Step, sizes: dict[str, int], limit: int) -> Finding | None:
    """Require that the all-reduces cover whole buckets, start when they can, and are awaited."""
    if finding := filled(step.buckets, sizes, limit):
        return finding
    last_pass = sum(places(step.events, "last pass"))  # 0 without a backward pass
    if places(step.events[:last_pass], "start"):
        return observed("an all-reduce starts within no_sync(), where passes only accumulate")
    events = step.events[last_pass:]
    starts = [event for event in events if event.kind == "start"]
    number = {address: i for i, address in enumerate(step.buffers)}
    order, in_turn = [number.get(s.address, -1) for s in starts], list(range(len(step.buckets)))
    possible = _possible(events, step.buckets)
    if sorted(order) == in_turn != order:
        return MISTAKES.as_they_come(order=order)
    if order == in_turn[: len(order)] and len(possible) <= len(order) < len(in_turn):
        return MISTAKES.left_out(got=len(order), right=len(in_turn))
    got, right = [s.bytes for s in starts], [sum(map(sizes.get, names)) for names in step.buckets]
    if order != in_turn or got != right:
        if not order:
            return observed(
                f"no all-reduce starts, expected one for each of {len(in_turn)} buckets. If the "
                "first step starts them, `finish()` must call `self.restart()` at its end"
            )
        other = " (-1 is another tensor)" if -1 in order else ""
        return observed(
            f"all-reduces of buffers {order}, of {got} bytes, expected {in_turn}, of {right} bytes"
            f"{other}"
        )
    return during_backward(events, possible) or awaited(events, in_turn)


def _possible(events: Sequence[Event], buckets: Names) -> list[int]:
    """Return where in `events` each bucket that is complete in the backward pass can start."""
    ready = {events[at].what: at for at in places(events, "ready")}
    found: list[int] = []
    for bucket in buckets:
        if not ready.keys() >= set(bucket):
            break  # finish() starts this one, and those after it
        found.append(max([*found[-1:], *(ready[name] for name in bucket)]))
    return found


def during_backward(events: Sequence[Event], possible: list[int]) -> Finding | None:
    ends = sum(places(events, "backward ends"))  # 0 without a backward pass
    if places(events[:ends], "wait"):
        return MISTAKES.blocking()
    starts = places(events, "start")
    for i, start in enumerate(starts):
        if start < (possible[i] if i < len(possible) else ends):
            return MISTAKES.too_early(i=i)
    overlapped = sum(start < ends for start in starts)
    if overlapped < len(possible):
        return MISTAKES.no_overlap(got=overlapped, right=len(possible))
    for i, (at, start) in enumerate(zip(possible, starts, strict=False)):
        if later := [event.what for event in events[at + 1 : start] if event.kind == "ready"]:
            return observed(f"bucket {i} is complete, but starts only after {later[0]} is ready")
    return None


def awaited(events: Sequence[Event], in_turn: list[int]) -> Finding | None:
    waits = places(events, "wait")
    numbers = sorted(events[at].what for at in waits)
    if running := set(in_turn) - set(numbers):
        return MISTAKES.not_awaited(got=len(running), right=len(in_turn))
    if numbers != in_turn:
        return observed(f"finish() waits for handles {numbers}, expected each one once")
    if places(events[waits[0] :], "start"):
        return observed("finish() waits before it has started all buckets. Start them all first")
    return None
