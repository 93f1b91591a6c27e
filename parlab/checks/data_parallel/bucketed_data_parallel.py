"""Exercise `bucketed_data_parallel`."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.data_parallel import sums
from parlab.checks.data_parallel.assign_buckets import (
    Names,
    bucket_names,
    packed,
    trainable_bytes,
)
from parlab.checks.data_parallel.models import awkward_model, gradients_of
from parlab.checks.data_parallel.sums import WeightedSum
from parlab.checks.groups import Event, places
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import (
    Shard,
    State,
    add,
    gradients,
    tokens,
    trainable,
    uneven_shards,
)
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    **{key: sums.MISTAKES.texts[key] for key in ("divided_again", "largest")},
    for_each_gradient=(
        "{got} all-reduces for {right} buckets: a bucket is sent once, when the last of its "
        "gradients is ready"
    ),
    left_out=(
        "{got} all-reduces for {right} buckets: a parameter that no gradient reaches never calls "
        "gradient_ready, so finish() must start the buckets that are left"
    ),
    wrong_buffer=(
        "the all-reduces are to be of buffers 0, 1, …, each once and whole. They are of {order}, "
        "where −1 is none of them, and of {got} bytes"
    ),
    blocking=(
        "the backward pass stops and waits for an all-reduce: async_op=True returns a handle at "
        "once, to be waited for in finish()"
    ),
    too_early=(
        "bucket {i} starts before the gradient of {late} is ready: it sends what was there "
        "before. Count down the gradients that are missing"
    ),
    no_overlap=(
        "{got} buckets start during the backward pass where {right} are complete in it and could: "
        "what starts after it is not hidden"
    ),
    too_late="bucket {i} could start before the gradient of {later} is ready, and waits",
    as_they_come=(
        "buckets start in the order {order}, as they are complete. A model may finish its "
        "gradients in another order on another rank, and the ranks would add up buckets that do "
        "not belong together: bucket 1 must wait until bucket 0 has started"
    ),
    not_awaited=(
        "finish() returned while {got} of {right} all-reduces were under way: the optimizer would "
        "read gradients that are still changing. wait() for every handle"
    ),
    one_by_one=(
        "finish() waits for one bucket before it starts the next: start all that are left, then "
        "wait for all handles"
    ),
    no_restart=(
        "the first step is right and this one is not: is everything ready for the next step when "
        "finish() returns, by self.restart()? {what}"
    ),
)


Loss = Callable[[nn.Module], Tensor]


@dataclass
class Step:
    """One training step on this rank: what happened in it, and what is there after it."""

    events: list[Event]
    gradients: State
    buckets: Names
    buffers: list[int]  # their addresses


class Layers(nn.Module):
    """Layers listed as 0, 1, 2, …, and used in the order given; those not named are not used."""

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
    for used in ([0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 3]):
        with check.trial() as trial:
            _order_only(trial, used)
    for trial in check.trials():
        _three_steps(trial)
    return (
        "each bucket starts as soon as it is complete and its turn has come, in one order on all "
        "ranks; all are awaited; gradients are summed, step after step, and after no_sync()"
    )


def _order_only(trial: Trial, used: list[int]) -> None:
    """One bucket a layer; where layers are used in another order, the first is ready last."""
    trial.situation = f"layers 0 to 3 are in buckets of their own, and are used in the order {used}"
    x = torch.ones(2, 5, dtype=torch.float64)
    steps = trial.run_function(
        _train, trial, Layers(4, used), 1, [[lambda model: model(x).sum()]] * 2
    )
    buckets = [[f"layers.{i}.weight"] for i in (3, 2, 1, 0)]
    trial.require(
        lambda: in_order(steps[0], buckets, [200] * 4),
        lambda: second(in_order(steps[1], buckets, [200] * 4)),
    )


def _three_steps(trial: Trial) -> None:
    """In the second step a rank may have no samples; the third has two backward passes."""
    model = awkward_model(trial.draw, trial.rank)
    start = trial.gather(copy.deepcopy(model))[0]
    sizes = trainable_bytes(model)
    limit = max(sizes.values())
    buckets = packed(sizes, limit)
    bytes_of = [sum(sizes[name] for name in bucket) for bucket in buckets]
    uneven = uneven_shards(trial.draw, trial.size)
    plan = [[uneven[0]], [uneven[-1]], [uneven[0], uneven[0]]]  # [step][pass][rank]
    data = [[[tokens(trial.draw, model, n) for n in ranks] for ranks in step] for step in plan]
    passes = [_passes(step, trial.rank) for step in data]
    steps = trial.run_function(_train, trial, model, limit, passes)
    everyone = trial.gather([step.gradients for step in steps or ()])
    for number, step in enumerate(data):
        samples = [sum(ranks) for ranks in zip(*plan[number], strict=True)]
        trial.situation = f"step {number + 1}, samples on the ranks: {samples}"
        local = [_mean_gradients(start, shards) for shards in zip(*step, strict=True)]
        total = WeightedSum(local, samples)
        got = [gradients[number] for gradients in everyone]
        trial.require(
            lambda: in_order(steps[number], buckets, bytes_of),
            lambda: total.instead(got),
            lambda: total.equals(got[trial.rank]),
        )


def _passes(step: list[list[Shard]], rank: int) -> list[Loss]:
    """The weighted losses of one rank's backward passes in a step; none without samples."""
    total = sum(len(inputs) for ranks in step for inputs, _ in ranks)

    def weighted(inputs: Tensor, targets: Tensor) -> Loss:
        share = len(inputs) / total
        return lambda model: share * F.cross_entropy(model(inputs), targets)

    return [weighted(*ranks[rank]) for ranks in step if len(ranks[rank][0])]


def _mean_gradients(model: nn.Module, shards: Sequence[Shard]) -> State:
    """Of the mean loss over all samples of the shards."""
    samples = [len(inputs) for inputs, _ in shards]
    weights = [n / max(sum(samples), 1) for n in samples]
    return add([gradients(model, *shard) for shard in shards], weights)


def _train(trial: Trial, model: nn.Module, limit: int, steps: list[list[Loss]]) -> list[Step]:
    """Train with the learner's class, all backward passes of a step but the last in no_sync()."""
    group = trial.group
    assert group is not None
    for name, parameter in trainable(model).items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: group.note("ready", name))
    parallel = trial.check.function(model, group, limit)
    done = []
    for losses in steps:
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
        addresses = [buffer.data_ptr() for buffer in parallel.buffers]
        names = bucket_names(parallel.buckets, model)
        done.append(Step(group.take_events(), gradients_of(model), names, addresses))
    return done


def second(finding: Finding | None) -> Finding | None:
    """What is wrong with a second step that is like the first, which was right."""
    return finding and MISTAKES.no_restart(what=finding.text)


def in_order(step: Step, buckets: Names, bytes_of: list[int]) -> Finding | None:
    """Whether the all-reduces cover whole buckets, start when they can, and are awaited."""
    if step.buckets != buckets:
        return evidence(f"the buckets are {step.buckets} where {buckets} are right")
    last_pass = sum(places(step.events, "last pass"))  # 0 where a rank makes none
    events = step.events[last_pass:]
    if places(step.events[:last_pass], "start"):
        return evidence("an all-reduce starts within no_sync(), where passes only accumulate")
    starts = [event for event in events if event.kind == "start"]
    if len(starts) > len(buckets):
        return MISTAKES.for_each_gradient(got=len(starts), right=len(buckets))
    if len(starts) < len(buckets):
        if len(starts) >= len(_possible(events, buckets)):
            return MISTAKES.left_out(got=len(starts), right=len(buckets))
        return evidence(f"{len(starts)} all-reduces for {len(buckets)} buckets")
    number = {address: i for i, address in enumerate(step.buffers)}
    order, in_turn = [number.get(s.address, -1) for s in starts], list(range(len(buckets)))
    got = [start.bytes for start in starts]
    if sorted(order) == in_turn != order:
        return MISTAKES.as_they_come(order=order)
    if order != in_turn or got != bytes_of:
        return MISTAKES.wrong_buffer(order=order, got=got)
    return during_backward(events, buckets) or awaited(events, len(buckets))


def _ready(events: Sequence[Event]) -> dict[str, int]:
    """Where each gradient, by its parameter's name, was ready."""
    return {events[at].what: at for at in places(events, "ready")}


def _possible(events: Sequence[Event], buckets: Names) -> list[int]:
    """Where each bucket that can start during the backward pass could do so, in their order."""
    ready = _ready(events)
    found: list[int] = []
    for bucket in buckets:
        if not all(name in ready for name in bucket):
            break  # finish() starts this one, and those after it
        found.append(max([*found[-1:], *(ready[name] for name in bucket)]))
    return found


def during_backward(events: Sequence[Event], buckets: Names) -> Finding | None:
    if not places(events, "backward ends"):
        return None
    (ends,) = places(events, "backward ends")
    if places(events[:ends], "wait"):
        return MISTAKES.blocking()
    ready, starts, possible = _ready(events), places(events, "start"), _possible(events, buckets)
    for i, (start, bucket) in enumerate(zip(starts, buckets, strict=True)):
        late = [name for name in bucket if ready.get(name, ends) > start]
        if late:
            return MISTAKES.too_early(i=i, late=late[0])
    hidden = sum(start < ends for start in starts)
    if hidden < len(possible):
        return MISTAKES.no_overlap(got=hidden, right=len(possible))
    for i, at in enumerate(possible):
        later = [name for name, other in ready.items() if at < other < starts[i]]
        if later:
            return MISTAKES.too_late(i=i, later=later[0])
    return None


def awaited(events: Sequence[Event], count: int) -> Finding | None:
    waits = places(events, "wait")
    waited = {events[at].what for at in waits}
    if len(waited) < count:
        return MISTAKES.not_awaited(got=count - len(waited), right=count)
    if len(waits) > count:
        return evidence(f"finish() waits {len(waits)} times for {count} handles")
    return MISTAKES.one_by_one() if places(events[waits[0] :], "start") else None
