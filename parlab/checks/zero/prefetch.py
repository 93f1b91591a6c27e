"""Exercise `prefetch`."""

from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.late_group import Event
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.zero._models import Blocks, Chain, awkward_blocks, chain
from parlab.checks.zero._steps import Step
from parlab.checks.zero._training import sgd, trials
from parlab.checks.zero._whole_layers import NO_MEMORY, sharded_steps, whole_at_most

MISTAKES = Mistakes(
    not_whole=NO_MEMORY["not_whole"],
    not_awaited=(
        "the {which} pass of units[{unit}] begins before its own gather was waited for, so it "
        "computes with wrong numbers"
    ),
    not_ahead=(
        "when the {which} pass of units[{unit}] begins, the gather of the next one, units[{next}], "
        "is not under way{others}: start it before this unit computes"
    ),
    waited_for_next=(
        "when the {which} pass of units[{unit}] begins, the gather of the next one, units[{next}], "
        "was already waited for, so nothing overlaps: wait only for a unit's own"
    ),
    too_far=(
        "{when}, a rank holds {got} bytes of parameters besides its shards, expected at most "
        "{right}: while a layer computes, start only the gather of the next one, and none after "
        "the last"
    ),
)


@check_of(MISTAKES)
def prefetch(check: Check) -> str:
    """Check the order of gathers and passes, the memory, and the values."""
    for trial, make_optimizer in trials(check):
        nested = make_optimizer is sgd
        make_model = awkward_blocks if nested else chain
        for step in sharded_steps(trial, make_optimizer, make_model, MISTAKES, note_passes):
            padded = step.padded
            two = max(map(sum, pairwise(padded)))
            if nested:
                two = padded[0] + sum(sorted(padded[1:])[-2:])
            limits = {"between": 0, "forward": two, "backward": two, "after": 0}
            trial.require(
                lambda: next_is_under_way(step, nested),
                *whole_at_most(step, MISTAKES.too_far, limits),
                lambda: step.gradients_are_right(MISTAKES),
                lambda: step.gradients_are_freed(MISTAKES),
                lambda: step.parameters_are_right(MISTAKES),
                lambda: step.sends_at_most(3 * step.passes),
            )
    return (
        "each layer's parameters are on their way while the layer before it computes, forward and "
        "backward; two at a time are whole; the steps are those of one rank"
    )


def note_passes(trial: Trial, model: Blocks | Chain) -> None:
    """Record an event in the group when a layer's pass begins."""
    for unit, layer in enumerate(model.used_layers):
        layer.register_forward_pre_hook(lambda *_, u=unit: trial.group.note("forward", u))

        def ran(_: nn.Module, given: Any, output: Tensor, unit: int = unit) -> None:
            output.register_hook(lambda _: trial.group.note("backward", unit))

        layer.register_forward_hook(ran)


def next_is_under_way(step: Step, nested: bool) -> Finding | None:
    """Require that, when a pass begins, its gather is over and the next one's is under way."""
    padded = step.padded  # a gather's size identifies its unit
    orders = {"forward": [*range(len(padded))], "backward": [*range(len(padded))][::-1]}
    if nested:  # the model contains all other units, so its backward pass begins first
        orders["backward"] = [0, *orders["backward"][:-1]]
    started: dict[int, int] = {}  # the unit of each gather whose pass has not begun, by number
    waited: set[int] = set()
    begun: list[int] = []
    for event in step.record.events:
        if event.op == "all_gather":
            if event.bytes not in padded:
                return observed(f"an all-gather of {event.bytes} bytes, expected those of a unit")
            started[event.what] = padded.index(event.bytes)
        elif event.kind == "wait":
            waited.add(event.what)
        elif event.kind in orders:
            begun.append(event.what)
            own = [number for number, unit in started.items() if unit == event.what]
            for number in own:
                del started[number]
            early = {unit: number in waited for number, unit in started.items()}
            following = orders[event.kind][len(begun) :]
            if finding := _pass_begins(event, not waited.isdisjoint(own), following[:1], early):
                return finding
            if not following:
                begun = []
    return None


def _pass_begins(
    event: Event, own_waited: bool, following: list[int], early: dict[int, bool]
) -> Finding | None:
    """Judge a pass. `early` maps units gathered for later passes to whether that was waited for."""
    place = {"which": event.kind, "unit": event.what}
    if not own_waited:
        return MISTAKES.not_awaited(**place)
    for unit in following:
        if unit not in early:
            others = " and ".join(f"units[{other}]" for other in early)
            others = f", but that of {others} is" if early else ""
            return MISTAKES.not_ahead(**place, next=unit, others=others)
        if early[unit]:
            return MISTAKES.waited_for_next(**place, next=unit)
    return None
