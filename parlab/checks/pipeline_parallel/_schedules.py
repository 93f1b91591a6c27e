"""Requirements on schedules that a learner writes, and schedules that checks use."""

import bisect
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from parlab.checks.base.compare import a_type_of, has_type
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.pipeline import (
    Action,
    Deadlock,
    Incomplete,
    Schedule,
    backward,
    bubble,
    forward,
    live,
    needs,
    simulate,
    sizes,
    text,
    texts,
)

# Seconds of a forward and of a backward pass. An order may suit only one ratio.
DURATIONS = ((1.0, 2.0), (1.0, 1.0), (2.0, 1.0))
SLACK = 1e-9
SHOWN = 24  # actions in a message

MISTAKES = Mistakes(
    deadlock="{error}",
    incomplete="{error}",
    larger_bubble=(
        "the bubble is {got:.3f}, expected {right:.3f}, if a backward pass takes {ratio:g} times "
        "as long as a forward pass. Rank {rank} runs {actions}"
    ),
    holds_too_many=(
        "rank {rank} holds the activations of {got:g} {what} at once, expected at most {right:g}. "
        "It runs {actions}"
    ),
)


def texts_of(*keys: str) -> dict[str, str]:
    """Return the texts of these mistakes, for the check of an exercise."""
    return {key: MISTAKES.texts[key] for key in keys}


def is_schedule(schedule: Any) -> Finding | None:
    """Require a list of lists of actions."""
    if found := has_type(schedule, Sequence, "a list with a list of Actions for each rank"):
        return found
    for own in schedule:
        if isinstance(own, Action) or not isinstance(own, Sequence):
            got = a_type_of(own)
            return COMMON.wrong_type(name="an entry of the schedule", got=got, right="a list")
        for action in own:
            if found := has_type(action, Action, "an Action", "an entry of a rank's list"):
                return found
    return None


def complete(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> Finding | None:
    """Require every action once, for these numbers of ranks, stages, and micro-batches."""
    if len(schedule) != ranks:
        return observed(f"the schedule is for {len(schedule)} ranks, expected {ranks}")
    for rank, own in enumerate(schedule):
        for action in own:
            if isinstance(action.micro_batch, int) and action.micro_batch >= micro_batches:
                return MISTAKES.incomplete(
                    error=f"rank {rank} has {text(action)}, but micro-batches are numbered from 0 "
                    f"to {micro_batches - 1}"
                )
    try:
        got = sizes(schedule)
    except Incomplete as error:
        return MISTAKES.incomplete(error=error)
    if got == (ranks, chunks, micro_batches):
        return None
    return observed(
        f"the schedule has {got[1]} stages on each rank and {got[2]} micro-batches, expected "
        f"{chunks} and {micro_batches}"
    )


def can_run(schedule: Schedule) -> Finding | None:
    """Require that no ranks wait for each other forever."""
    try:
        simulate(schedule)
    except Deadlock as error:
        return MISTAKES.deadlock(error=error)
    return None


def bubble_at_most(schedule: Schedule, right: float) -> Finding | None:
    """Require a bubble of `right` or less, however long the passes take."""
    for forward_time, backward_time in DURATIONS:
        got = bubble(simulate(schedule, forward_time, backward_time))
        if got > right + SLACK:
            ratio, rank = backward_time / forward_time, _unlike_others(schedule)
            actions = _shown(schedule, rank)
            return MISTAKES.larger_bubble(
                got=got, right=right, ratio=ratio, rank=rank, actions=actions
            )
    return None


def _unlike_others(schedule: Schedule) -> int:
    """Return the first rank whose passes of a kind are in another order than those of rank 0."""

    def order(rank: int) -> list[tuple[str, int]]:
        return sorted(
            ((a.kind, a.micro_batch) for a in schedule[rank]), key=lambda passed: passed[0]
        )

    return next((rank for rank in range(len(schedule)) if order(rank) != order(0)), 0)


def held(schedule: Schedule) -> list[int]:
    """Return for each rank the largest number of stages' activations that it holds at once."""
    _, chunks, _ = sizes(schedule)
    return [round(count * chunks) for count in live(simulate(schedule))]


def holds_at_most(
    schedule: Schedule, limits: Sequence[int], what: str = "micro-batches"
) -> Finding | None:
    """Require that no rank holds more stages' activations than its limit."""
    for rank, (got, right) in enumerate(zip(held(schedule), limits, strict=True)):
        if got > right:
            actions = _shown(schedule, rank)
            return MISTAKES.holds_too_many(
                rank=rank, got=got, right=right, what=what, actions=actions
            )
    return None


def _shown(schedule: Schedule, rank: int) -> str:
    ranks, chunks, _ = sizes(schedule)
    shown = texts(schedule[rank][:SHOWN], ranks if chunks == 1 else None)
    return shown + (" …" if len(schedule[rank]) > SHOWN else "")


# Schedules that the checks make


def by_policy(
    ranks: int,
    chunks: int,
    micro_batches: int,
    choose: Callable[[list[Action], Schedule], Action],
) -> Schedule:
    """Make a schedule that can run. `choose` returns one of the actions that could be next.

    Its arguments are these actions and the schedule so far.
    """
    stages = ranks * chunks
    waits = {
        action: set(needs(action, stages))
        for stage in range(stages)
        for i in range(micro_batches)
        for action in (forward(stage, i), backward(stage, i))
    }
    ready = sorted(action for action, needed in waits.items() if not needed)
    schedule: Schedule = [[] for _ in range(ranks)]
    while ready:
        action = choose(ready, schedule)
        ready.remove(action)
        schedule[action.stage % ranks].append(action)
        for later, needed in waits.items():
            if action in needed:
                needed.remove(action)
                if not needed:
                    bisect.insort(ready, later)
    return schedule


def any_order(draw: Random, ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Draw one of the schedules that can run."""
    return by_policy(ranks, chunks, micro_batches, lambda ready, _: draw.choice(ready))


def forward_first(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Run all forward passes of a rank before its first backward pass."""
    return by_policy(
        ranks, chunks, micro_batches, lambda ready, _: max(ready, key=lambda a: a.kind == "forward")
    )


def few_in_flight(ranks: int, micro_batches: int) -> Schedule:
    """Run a forward pass while a rank holds too few micro-batches to fill the pipeline."""

    def choose(ready: list[Action], schedule: Schedule) -> Action:
        def last(action: Action) -> tuple[bool, bool]:
            flying = sum(1 if a.kind == "forward" else -1 for a in schedule[action.stage])
            is_forward = action.kind == "forward"
            return is_forward and flying >= ranks - action.stage, not is_forward

        return min(ready, key=last)

    return by_policy(ranks, 1, micro_batches, choose)
