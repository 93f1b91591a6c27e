"""Exercise `prefetch`."""

from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.groups import Event
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.zero import training
from parlab.checks.zero.models import Blocks, Chain, awkward_blocks, chain
from parlab.checks.zero.stage_3 import (
    MISTAKES as STAGE_3,
)
from parlab.checks.zero.stage_3 import (
    after_step,
    run,
    sent,
    shard_bytes,
    values,
)
from parlab.checks.zero.training import SLACK, Step

MISTAKES = Mistakes(
    not_whole_backward=STAGE_3.texts["not_whole_backward"],
    not_awaited=(
        "{name}: its {which} pass begins before its gather was waited for: what it computes with "
        "is not there yet"
    ),
    not_ahead=(
        "{name}: when its {which} pass begins, the gather of the next layer, {next}, is not under "
        "way: start it before this one computes"
    ),
    waited_for_next=(
        "{name}: when its {which} pass begins, the gather of the next layer, {next}, was waited "
        "for already: nothing is hidden. Wait for a unit's own"
    ),
    after_the_last=(
        "between the forward pass and the backward pass a rank holds {got} bytes of parameters, "
        "where its shards have {right}: after the last layer there is no next one to start"
    ),
    too_far=(
        "a rank holds {got} bytes of parameters in the {which} pass, where its shards, two layers "
        "and the model's own are {right}: start the next layer's gather, and no more"
    ),
)


@check_of(MISTAKES)
def prefetch(check: Check) -> str:
    """Check the order of gathers and passes, what is held, and the values."""
    for trial, make_optimizer in training.trials(check):
        _two_steps(trial, make_optimizer)
    return (
        "each layer's parameters are on their way while the layer before it computes, forward and "
        "backward; two at a time are whole; the steps are those of one rank"
    )


def _two_steps(trial: Trial, make_optimizer: training.MakeOptimizer) -> None:
    nested = make_optimizer is training.sgd
    make_model = awkward_blocks if nested else chain
    steps, expectations, sizes, frozen = run(trial, make_optimizer, note_passes, make_model)
    situation = trial.situation
    padded = [8 * trial.size * -(-size // trial.size) for size in sizes]
    two = max(map(sum, pairwise(padded)))
    if nested:
        two = padded[0] + sum(sorted(padded[1:])[-2:])
    for number, expected in enumerate(expectations):
        trial.situation = f"{situation}, step {number + 1}"
        step = steps[number] if steps else None
        passes = number + 1
        trial.require(
            lambda: between(step, shard_bytes(sizes, trial.size), frozen),
            lambda: held(step, "forward", shard_bytes(sizes, trial.size) + two, frozen),
            lambda: held(step, "backward", shard_bytes(sizes, trial.size) + two, frozen),
            lambda: after_step(step, shard_bytes(sizes, trial.size), frozen),
            lambda: ahead(step.events, padded, passes, nested),
        )
        values(trial, step, expected, sizes, nested)
        trial.require(lambda: sent(step, sizes, trial.size, passes))


def note_passes(trial: Trial, model: Blocks | Chain) -> None:
    """Write down, among the group's events, when the layers' passes begin."""
    for unit, layer in enumerate(model.used_layers):
        layer.register_forward_pre_hook(lambda *_, u=unit: trial.group.note("forward", u))

        def ran(_: nn.Module, given: Any, output: Tensor, unit: int = unit) -> None:
            output.register_hook(lambda _: trial.group.note("backward", unit))

        layer.register_forward_hook(ran)


def held(step: Step, which: str, right: int, frozen: int) -> Finding | None:
    got = step.most[which] - frozen
    return MISTAKES.too_far(got=got, right=right, which=which) if got > SLACK * right else None


def between(step: Step, right: int, frozen: int) -> Finding | None:
    got = step.most["between"] - frozen
    return MISTAKES.after_the_last(got=got, right=right) if got > SLACK * right else None


def ahead(events: list[Event], padded: list[int], passes: int, nested: bool) -> Finding | None:
    """Whether, when each layer's pass begins, its gather is over and the next one's under way.

    Units are told by the bytes of their gathers, which all differ.
    """
    order = {"forward": list(range(len(padded))), "backward": []}
    order["backward"] = order["forward"][::-1]
    names = [f"layer {i}" for i in range(len(padded))]
    if nested:
        order["backward"] = [0, *order["backward"][:-1]]
        names = ["the model", *(f"block {i}" for i in range(len(padded) - 1))]
    unit_of = {size: unit for unit, size in enumerate(padded)}
    started: dict[int, int] = {}  # unit of a gather by its number
    over: set[int] = set()
    seen = {"forward": 0, "backward": 0}
    for event in events:
        if event.kind == "start" and event.op == "all_gather":
            if event.bytes not in unit_of:
                return evidence(f"an all-gather of {event.bytes} bytes, which no unit has")
            started[event.what] = unit_of[event.bytes]
        elif event.kind == "wait" and event.what in started:
            over.add(event.what)
        elif event.kind in order:
            seen[event.kind] += 1
            if (found := _at_begin(event, order[event.kind], names, started, over)) is not None:
                return found
            if event.what == order[event.kind][-1]:
                started, over = {}, set()  # a pass is over
    if seen["forward"] != passes * len(padded):
        return evidence(f"{seen['forward']} layers' forward passes were seen")
    return None


def _at_begin(
    event: Event, order: list[int], names: list[str], started: dict[int, int], over: set[int]
) -> Finding | None:
    unit, which = event.what, event.kind
    done = {started[number] for number in over}
    if unit not in done:
        return MISTAKES.not_awaited(name=names[unit], which=which)
    place = order.index(unit) + 1
    if place == len(order):
        return None
    next_unit = order[place]
    if next_unit not in started.values():
        return MISTAKES.not_ahead(name=names[unit], which=which, next=names[next_unit])
    if next_unit in done:
        return MISTAKES.waited_for_next(name=names[unit], which=which, next=names[next_unit])
    return None
