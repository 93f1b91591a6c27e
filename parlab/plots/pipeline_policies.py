"""Find schedules by simulation: each free rank waits for the action that its rule chooses next.

    schedule("1f1b", ranks=4, micro_batches=6)

A rank runs a forward pass unless too many of its micro-batches still wait for their backward
passes; otherwise it runs a backward pass. The schedules differ in this limit:

- "gpipe": no limit;
- "1f1b": the number of ranks from this one to the end of the pipeline;
- "interleaved": the same idea with several stages on a rank, which runs p micro-batches through
  each stage in turn.

`zero_bubble` divides a backward pass into two parts and delays the part for weights until the rank
would be idle (ZB-H1 and ZB-H2 of Qi et al. 2024).
"""

import heapq
from collections import Counter
from collections.abc import Iterator

from parlab.pipeline import Action, Schedule, Span, backward, forward, needs

POLICIES = ("gpipe", "1f1b", "interleaved")
ZERO_BUBBLE = ("ZB-H1", "ZB-H2")


def schedule(policy: str, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return each rank's actions if a backward pass takes twice as long as a forward pass.

    Raises ValueError for an unknown policy, and for an interleaved schedule if the number of
    micro-batches is not a multiple of the number of ranks.
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
    """Return the spans of "ZB-H1" or "ZB-H2". Each kind of action takes one unit of time.

    The kinds are "forward", "backward" (gradients of inputs only), and "weights" (gradients of
    weights). ZB-H2 fills the time before the first backward pass with forward passes, which takes
    2p − 1 micro-batches.

    Raises ValueError for another policy.
    """
    if policy not in ZERO_BUBBLE:
        raise ValueError(f"no policy {policy!r}: use one of {', '.join(ZERO_BUBBLE)}")
    workers = [Worker(policy, rank, ranks, micro_batches, 1) for rank in range(ranks)]
    return play(workers, ranks, {"forward": 1, "backward": 1, "weights": 1})


def idle(spans: list[Span]) -> list[float]:
    """Return each rank's idle time between its own first start and its own last end.

    Qi et al. count idle time this way. `parlab.pipeline.bubble` counts from the first start to the
    last end of all ranks, because all ranks run the optimizer at the same time.
    """
    own = [[s for s in spans if s.rank == r] for r in range(1 + max(s.rank for s in spans))]
    return [of[-1].end - of[0].start - sum(s.end - s.start for s in of) for of in own]


class Worker:
    """A rank and its rule: which actions remain, and which one is next."""

    def __init__(self, policy: str, rank: int, ranks: int, micro_batches: int, chunks: int) -> None:
        order = list(_order(rank, ranks, micro_batches, chunks))
        last = (chunks - 1) * ranks + 2 * rank  # backward passes start at the last stage
        self.todo = {
            "forward": [forward(stage, m) for stage, m in order],
            "backward": [backward(last - stage, m) for stage, m in order],
            "weights": [],
        }
        self.counts: Counter[str] = Counter()
        self.ahead = {
            "gpipe": micro_batches,
            "1f1b": ranks - rank,
            "interleaved": (2 if chunks > 1 else 1) * (ranks - rank - 1) + (chunks - 1) * ranks + 1,
            "ZB-H1": ranks - rank,
            "ZB-H2": 2 * (ranks - rank) - 1,
        }[policy]
        self.two_parts = policy in ZERO_BUBBLE
        self.later = 2 * rank if policy == "ZB-H2" else rank  # weight gradients that may wait

    def next(self) -> Action | None:
        """Return the next action, which may have to wait; None at the end."""
        if len(self.todo["weights"]) > (self.later if self.todo["backward"] else 0):
            return self.todo["weights"][0]
        ahead = self.counts["forward"] - self.counts["backward"]
        if self.todo["forward"] and ahead < self.ahead:
            return self.todo["forward"][0]
        return self.todo["backward"][0] if self.todo["backward"] else None

    def begin(self, action: Action) -> None:
        """Record that `action` has started."""
        self.todo[action.kind].pop(0)
        self.counts[action.kind] += 1
        if action.kind == "backward" and self.two_parts:
            self.todo["weights"].append(Action("weights", action.stage, action.micro_batch))


def _order(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Yield stage and micro-batch of each forward pass: p micro-batches per stage in turn."""
    turn = ranks if chunks > 1 else micro_batches
    for first in range(0, micro_batches, turn):
        for chunk in range(chunks):
            for micro_batch in range(first, first + turn):
                yield rank + chunk * ranks, micro_batch


def play(workers: list[Worker], stages: int, durations: dict[str, int]) -> list[Span]:
    """Simulate from the end of one action to the next. Return the spans by rank and start."""
    spans: list[Span] = []
    ready: set[Action] = set()  # finished actions
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
    """Return the actions that must end first.

    A weight gradient needs only the rank's own backward pass, which has already run.
    """
    return [] if action.kind == "weights" else needs(action, stages)
