"""Schedules found by playing: each rank, whenever it is free, waits for what its rule wants next.

    schedule("1f1b", ranks=4, micro_batches=6)

The rules are what the schedules mean; the lists of actions follow. A rank takes a forward pass as
long as not too many micro-batches are on their way back to it, and else a backward pass. How many
are too many makes the schedule. "gpipe": never. "1f1b": as many as there are ranks from here to the
end. "interleaved": the same with several stages on a rank, which it serves in turn, p micro-batches
each. `zero_bubble` has backward passes in two parts, of which the one for the weights comes later,
where there would be a gap (ZB-H1 and ZB-H2 of Qi et al. 2024).
"""

import heapq
from collections import Counter
from collections.abc import Iterator

from parlab.pipeline import Action, Schedule, Span, backward, forward, needs

POLICIES = ("gpipe", "1f1b", "interleaved")
ZERO_BUBBLE = ("ZB-H1", "ZB-H2")


def schedule(policy: str, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Each rank's actions, with a backward pass that takes twice as long as a forward pass.

    Raises ValueError for a policy that is none, and for an interleaved schedule whose
    micro-batches the ranks do not divide.
    """
    if policy not in POLICIES:
        raise ValueError(f"no policy {policy!r}: use one of {', '.join(POLICIES)}")
    if policy == "interleaved" and micro_batches % ranks:
        raise ValueError(
            f"interleaved stages take {ranks} micro-batches in turn: {micro_batches} is no "
            "multiple of that"
        )
    if policy != "interleaved" and chunks != 1:
        raise ValueError(f"{policy} has one stage on a rank, not {chunks}")
    workers = [Worker(policy, rank, ranks, micro_batches, chunks) for rank in range(ranks)]
    spans = play(workers, ranks * chunks, {"forward": 1, "backward": 2})
    actions: Schedule = [[] for _ in range(ranks)]
    for span in spans:
        actions[span.rank].append(span.action)
    return actions


def zero_bubble(policy: str, ranks: int, micro_batches: int) -> list[Span]:
    """ "ZB-H1" or "ZB-H2": forward pass, backward for inputs and for weights take 1 each.

    Actions are of the kinds "forward", "backward" (for inputs) and "weights". ZB-H2 fills the time
    before the first backward pass with forward passes, and needs 2p − 1 micro-batches for that.

    Raises ValueError for a policy that is neither.
    """
    if policy not in ZERO_BUBBLE:
        raise ValueError(f"no policy {policy!r}: use one of {', '.join(ZERO_BUBBLE)}")
    workers = [Worker(policy, rank, ranks, micro_batches, 1) for rank in range(ranks)]
    return play(workers, ranks, {"forward": 1, "backward": 1, "weights": 1})


def idle(spans: list[Span]) -> list[float]:
    """For each rank, from its own first start to its own last end, the time that it does nothing.

    So Qi et al. count. `parlab.pipeline.bubble` counts from the first start of all: to one step of
    the optimizer for all ranks together.
    """
    own = [[s for s in spans if s.rank == r] for r in range(1 + max(s.rank for s in spans))]
    return [of[-1].end - of[0].start - sum(s.end - s.start for s in of) for of in own]


class Worker:
    """A rank and its rule: what is still to do, and what of it comes next."""

    def __init__(self, policy: str, rank: int, ranks: int, micro_batches: int, chunks: int) -> None:
        order = list(_order(rank, ranks, micro_batches, chunks))
        last = (chunks - 1) * ranks + 2 * rank  # back through the stages, the last one first
        self.todo = {
            "forward": [forward(stage, m) for stage, m in order],
            "backward": [backward(last - stage, m) for stage, m in order],
            "weights": [],
        }
        self.done: Counter[str] = Counter()
        self.ahead = {
            "gpipe": micro_batches,
            "1f1b": ranks - rank,
            "interleaved": (2 if chunks > 1 else 1) * (ranks - rank - 1) + (chunks - 1) * ranks + 1,
            "ZB-H1": ranks - rank,
            "ZB-H2": 2 * (ranks - rank) - 1,
        }[policy]
        self.two_parts = policy in ZERO_BUBBLE
        self.later = 2 * rank if policy == "ZB-H2" else rank  # gradients of weights put off

    def next(self) -> Action | None:
        """What this rank waits for and does next; None at the end."""
        if len(self.todo["weights"]) > (self.later if self.todo["backward"] else 0):
            return self.todo["weights"][0]
        ahead = self.done["forward"] - self.done["backward"]
        if self.todo["forward"] and ahead < self.ahead:
            return self.todo["forward"][0]
        return self.todo["backward"][0] if self.todo["backward"] else None

    def begin(self, action: Action) -> None:
        """`action` is begun: what comes after it is the next of its kind."""
        self.todo[action.kind].pop(0)
        self.done[action.kind] += 1
        if action.kind == "backward" and self.two_parts:
            self.todo["weights"].append(Action("weights", action.stage, action.micro_batch))


def _order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Stage and micro-batch of a rank's forward passes: each stage in turn, p micro-batches."""
    turn = ranks if chunks > 1 else micro_batches
    for first in range(0, micro_batches, turn):
        for chunk in range(chunks):
            for micro_batch in range(first, first + turn):
                yield rank + chunk * ranks, micro_batch


def play(workers: list[Worker], stages: int, durations: dict[str, int]) -> list[Span]:
    """Let time pass from one end of an action to the next; all spans, by rank and start."""
    spans: list[Span] = []
    ready: set[Action] = set()  # actions that are over
    free = [True] * len(workers)
    ends: list[tuple[int, int, Action]] = []
    now = 0
    while True:
        for rank, worker in enumerate(workers):
            action = worker.next() if free[rank] else None
            if action is not None and all(need in ready for need in _needs(action, stages)):
                worker.begin(action)
                free[rank] = False
                heapq.heappush(ends, (now + durations[action.kind], rank, action))
                spans.append(Span(rank, action, now, now + durations[action.kind]))
        if not ends:
            break
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, rank, action = heapq.heappop(ends)
            free[rank] = True
            ready.add(action)
    return sorted(spans, key=lambda span: (span.rank, span.start))


def _needs(action: Action, stages: int) -> list[Action]:
    """Weights' gradients need the backward pass before them, which this rank has done itself."""
    return [] if action.kind == "weights" else needs(action, stages)
