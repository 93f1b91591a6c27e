"""Requirements on schedules that a learner writes; and schedules of any order, for executors."""

import bisect
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from parlab.checks.mistakes import COMMON, Finding, Mistakes
from parlab.pipeline import (
    Action,
    Deadlock,
    Incomplete,
    Schedule,
    Span,
    backward,
    bubble,
    forward,
    live,
    needs,
    simulate,
    sizes,
    texts,
)

# One duration of a backward pass would let an order pass that only suits this one.
DURATIONS = ((1.0, 2.0), (1.0, 1.0), (2.0, 1.0))
SLACK = 1e-9

MISTAKES = Mistakes(
    deadlock="{error}",
    incomplete="{error}",
    other_size="it is a schedule of {got} where {right} is asked for",
    larger_bubble=(
        "the bubble is {got:.3f} where {right:.3f} is right, with backward passes that take "
        "{ratio:g} times as long as forward passes. Rank {rank} waits from {start:g} to {end:g}, "
        "in its actions {actions}"
    ),
    holds_too_many=(
        "rank {rank} holds the activations of {got:g} {what} at once where {right:g} are enough: "
        "{actions}"
    ),
)


def texts_of(*keys: str) -> dict[str, str]:
    """Of these mistakes, for the check of an exercise in which they can be made."""
    return {key: MISTAKES.texts[key] for key in keys}


def form(schedule: Any) -> Finding | None:
    """Whether it is a list of lists of actions."""
    if schedule is None:
        return COMMON.returns_none()
    if not isinstance(schedule, Sequence) or not all(isinstance(own, Sequence) for own in schedule):
        return COMMON.wrong_type(
            name="the schedule", got=f"a {type(schedule).__name__}", right="a list of lists"
        )
    if any(isinstance(own, Action) for own in schedule):
        return COMMON.wrong_type(
            name="the schedule", got="one list of Actions", right="a list of lists, one a rank,"
        )
    for own in schedule:
        for action in own:
            if not isinstance(action, Action):
                return COMMON.wrong_type(
                    name="an entry", got=f"a {type(action).__name__}", right="an Action"
                )
    return None


def complete(schedule: Schedule, right: tuple[int, int, int]) -> Finding | None:
    """Whether every action is there once, for so many ranks, stages a rank and micro-batches."""
    if len(schedule) != right[0]:
        return MISTAKES.other_size(got=f"{len(schedule)} ranks", right=f"{right[0]}")
    try:
        got = sizes(schedule)
    except Incomplete as error:
        return MISTAKES.incomplete(error=error)
    if got != right:
        return MISTAKES.other_size(got=_size(got), right=_size(right))
    return None


def _size(size: tuple[int, int, int]) -> str:
    return f"{size[0]} ranks with {size[1]} stages each and {size[2]} micro-batches"


def can_run(schedule: Schedule) -> Finding | None:
    """Whether no ranks wait for each other for ever."""
    try:
        simulate(schedule)
    except Deadlock as error:
        return MISTAKES.deadlock(error=error)
    return None


def bubble_is(schedule: Schedule, right: float) -> Finding | None:
    """Whether the bubble is `right`, or smaller, whatever passes take."""
    for forward_time, backward_time in DURATIONS:
        spans = simulate(schedule, forward_time, backward_time)
        got = bubble(spans)
        if got > right + SLACK:
            rank, start, end = _longest_wait(spans)
            return MISTAKES.larger_bubble(
                got=got,
                right=right,
                ratio=backward_time / forward_time,
                rank=rank,
                start=start,
                end=end,
                actions=_some(schedule, rank),
            )
    return None


def _longest_wait(spans: list[Span]) -> tuple[int, float, float]:
    """The rank that waits longest between two of its actions, from when to when."""
    waits = [
        (after.start - before.end, before.rank, before.end, after.start)
        for before, after in itertools.pairwise(spans)
        if before.rank == after.rank
    ]
    _, rank, start, end = max(waits, key=lambda wait: wait[0], default=(0.0, 0, 0.0, 0.0))
    return rank, start, end


def holds_at_most(
    schedule: Schedule, limit: Callable[[int], float], what: str = "micro-batches"
) -> Finding | None:
    """Whether no rank holds more stages' activations than `limit(rank)`, in stages of a rank."""
    _, chunks, _ = sizes(schedule)
    for rank, held in enumerate(live(simulate(schedule))):
        got = round(held * chunks)
        if got > limit(rank):
            return MISTAKES.holds_too_many(
                rank=rank, got=got, right=limit(rank), what=what, actions=_some(schedule, rank)
            )
    return None


def _some(schedule: Schedule, rank: int, most: int = 24) -> str:
    ranks, chunks, _ = sizes(schedule)
    shown = texts(schedule[rank][:most], ranks if chunks == 1 else None)
    return shown + (" …" if len(schedule[rank]) > most else "")


# Schedules of the checks' own


def by_policy(
    ranks: int,
    chunks: int,
    micro_batches: int,
    choose: Callable[[list[Action], Schedule], Action],
) -> Schedule:
    """A schedule that can run: of all actions that could be next, `choose` takes one, again.

    `choose` gets them, and the schedule so far.
    """
    stages = ranks * chunks
    waits = {
        action: set(needs(action, stages))
        for stage in range(stages)
        for i in range(micro_batches)
        for action in (forward(stage, i), backward(stage, i))
    }
    waited_for: dict[Action, list[Action]] = {}
    for action, needed in waits.items():
        for one in needed:
            waited_for.setdefault(one, []).append(action)
    ready = sorted(action for action, needed in waits.items() if not needed)
    schedule: Schedule = [[] for _ in range(ranks)]
    while ready:
        action = choose(ready, schedule)
        ready.remove(action)
        schedule[action.stage % ranks].append(action)
        for later in waited_for.get(action, ()):
            waits[later].remove(action)
            if not waits[later]:
                bisect.insort(ready, later)
    return schedule


def any_order(draw: Random, ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """A random schedule among those that can run."""
    return by_policy(ranks, chunks, micro_batches, lambda ready, _: draw.choice(ready))


def forward_first(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """All forward passes of a rank before its first backward pass."""
    return by_policy(
        ranks, chunks, micro_batches, lambda ready, _: max(ready, key=lambda a: a.kind == "forward")
    )


def few_in_flight(ranks: int, micro_batches: int) -> Schedule:
    """Forward passes while a rank holds fewer than fill the pipeline; else backward passes."""

    def choose(ready: list[Action], schedule: Schedule) -> Action:
        def last(action: Action) -> tuple[bool, bool]:
            flying = sum(1 if a.kind == "forward" else -1 for a in schedule[action.stage])
            is_forward = action.kind == "forward"
            return is_forward and flying >= ranks - action.stage, not is_forward

        return min(ready, key=last)

    return by_policy(ranks, 1, micro_batches, choose)
