"""Computes when each action of a schedule runs, or which ranks wait for each other forever."""

from typing import NamedTuple

from parlab.pipeline.actions import Action, Schedule, backward, forward, text
from parlab.pipeline.complete import sizes


class Span(NamedTuple):
    """An action of a rank, with its start and end in the units of the durations."""

    rank: int
    action: Action
    start: float
    end: float


class Wait(NamedTuple):
    """`rank` waits at its action `at` for `needs`, an action of rank `other`."""

    rank: int
    at: Action
    needs: Action
    other: int


class Deadlock(ValueError):
    """Ranks wait for each other in a circle. In `cycle`, the last rank waits for the first one."""

    def __init__(self, cycle: list[Wait], ranks: int | None) -> None:
        steps = "; ".join(
            f"rank {w.rank} waits at {text(w.at, ranks)} for "
            + (
                f"{text(w.needs, ranks)} of rank {w.other}"
                if w.other != w.rank
                else f"its own {text(w.needs, ranks)}, which it runs later"
            )
            for w in cycle
        )
        super().__init__(f"deadlock: {steps}")
        self.cycle = cycle


def simulate(
    schedule: Schedule, forward: float = 1.0, backward: float = 2.0, message: float = 0.0
) -> list[Span]:
    """Return the spans of all actions, by rank and in order, if each starts as early as possible.

    F(s, m) waits for F(s − 1, m), and B(s, m) waits for F(s, m) and B(s + 1, m). A rank can compute
    while it sends.

    Args:
        schedule: for each rank, its actions in order.
        forward: the duration of the forward pass of one micro-batch through one stage.
        backward: the duration of the backward pass.
        message: the duration of a message from one rank to another.

    Raises:
        Incomplete: an action is missing, doubled, misplaced, or invalid.
        Deadlock: ranks wait for each other. The error names the cycle.
    """
    ranks, chunks, _ = sizes(schedule)
    stages = ranks * chunks
    ends: dict[Action, float] = {}
    spans: list[list[Span]] = [[] for _ in range(ranks)]
    at = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions):
                action = Action(*actions[at[rank]])
                needed = needs(action, stages)
                if any(one not in ends for one in needed):
                    break
                arrivals = [
                    ends[one] + (message if one.stage % ranks != rank else 0.0) for one in needed
                ]
                start = max([spans[rank][-1].end if spans[rank] else 0.0, *arrivals])
                ends[action] = start + (forward if action.kind == "forward" else backward)
                spans[rank].append(Span(rank, action, start, ends[action]))
                at[rank] += 1
                moved = True
    if len(ends) < sum(map(len, schedule)):
        raise Deadlock(_cycle(schedule, at, ends, stages), ranks if chunks == 1 else None)
    return [span for own in spans for span in own]


def needs(action: Action, stages: int) -> list[Action]:
    """Return the actions that must end before `action` can start, in a model of `stages`."""
    _, stage, micro_batch = action
    if action.kind == "forward":
        return [forward(stage - 1, micro_batch)] if stage else []
    later = [backward(stage + 1, micro_batch)] if stage + 1 < stages else []
    return [forward(stage, micro_batch), *later]


def _cycle(schedule: Schedule, at: list[int], ends: dict[Action, float], stages: int) -> list[Wait]:
    """Follow the waits from any waiting rank until a rank occurs again. Return this cycle."""
    ranks = len(schedule)
    rank = next(r for r in range(ranks) if at[r] < len(schedule[r]))
    path: list[Wait] = []
    while rank not in [wait.rank for wait in path]:
        action = Action(*schedule[rank][at[rank]])
        needed = next(one for one in needs(action, stages) if one not in ends)
        path.append(Wait(rank, action, needed, needed.stage % ranks))
        rank = path[-1].other
    return path[[wait.rank for wait in path].index(rank) :]


def bubble(spans: list[Span]) -> float:
    """Return the ranks' idle time divided by their computing time: (p − 1)/m for GPipe and 1F1B.

    The time of each rank lasts from the first start to the last end on any rank (Narayanan et al.
    2021, section 2.2.1).
    """
    ranks = len({span.rank for span in spans})
    total = max(span.end for span in spans) - min(span.start for span in spans)
    busy = sum(span.end - span.start for span in spans)
    return ranks * total / busy - 1


def live(spans: list[Span]) -> list[float]:
    """Return the peak of activations on each rank, in micro-batches of its whole share.

    A stage holds a micro-batch's activations from its forward pass to the end of its backward
    pass. If a rank has v stages, each counts 1/v.
    """
    ranks = max(span.rank for span in spans) + 1
    stages = max(span.action.stage for span in spans) + 1
    held, largest = [0] * ranks, [0] * ranks
    for span in sorted(spans, key=lambda span: span.start):
        held[span.rank] += 1 if span.action.kind == "forward" else -1
        largest[span.rank] = max(largest[span.rank], held[span.rank])
    return [count * ranks / stages for count in largest]
