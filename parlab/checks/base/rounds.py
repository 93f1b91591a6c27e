"""Counts the rounds that recorded messages need, by replaying them on an ideal machine.

There, a message takes one round and starts when both its sender and its receiver are ready. In each
round, a rank sends at most one message and receives at most one. Two algorithms that send the same
messages can still need different numbers of rounds, and rounds determine the time on a network.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One call of a rank: it sends to `to`, receives from `source`, or both at once.

    If a step is not `blocking`, the rank continues before its message has arrived.
    """

    to: int | None = None
    source: int | None = None
    blocking: bool = True


@dataclass
class _Half:
    """One end of a message: the send or the receive, called at `time` on `rank`."""

    rank: int
    time: int
    end: int | None = None


@dataclass
class _Rank:
    todo: list[Step]
    clock: int = 0
    waits_for: tuple[_Half, ...] = ()
    sends_until: int = 0
    receives_until: int = 0


def rounds(programs: Sequence[Sequence[Step]]) -> int | None:
    """Return the number of rounds until the last message has arrived.

    `programs[r]` are the calls of rank r, in order. Return None if the replay never ends, because
    some send has no receive or some receive has no send.
    """
    ranks = [_Rank(list(program)) for program in programs]
    sends: dict[tuple[int, int], list[_Half]] = defaultdict(list)
    receives: dict[tuple[int, int], list[_Half]] = defaultdict(list)
    last = 0
    while True:
        for number, rank in enumerate(ranks):
            _advance(number, rank, sends, receives)
        ready = [pair for pair in sends if sends[pair] and receives[pair]]
        if not ready:
            break
        pair = min(ready, key=lambda pair: _start(ranks, sends[pair][0], receives[pair][0]))
        sender, receiver = sends[pair].pop(0), receives[pair].pop(0)
        end = _start(ranks, sender, receiver) + 1
        sender.end = receiver.end = end
        ranks[sender.rank].sends_until = ranks[receiver.rank].receives_until = end
        last = max(last, end)
    unmatched = any(sends.values()) or any(receives.values())
    return None if unmatched or any(rank.todo for rank in ranks) else last


def _start(ranks: list[_Rank], sender: _Half, receiver: _Half) -> int:
    return max(
        sender.time,
        receiver.time,
        ranks[sender.rank].sends_until,
        ranks[receiver.rank].receives_until,
    )


def _advance(
    number: int,
    rank: _Rank,
    sends: dict[tuple[int, int], list[_Half]],
    receives: dict[tuple[int, int], list[_Half]],
) -> None:
    """Replay a rank's calls up to the next one that blocks."""
    while True:
        ends = [half.end for half in rank.waits_for]
        if None in ends:
            return
        rank.clock = max([rank.clock, *ends])
        rank.waits_for = ()
        if not rank.todo:
            return
        step = rank.todo.pop(0)
        halves = []
        if step.to is not None:
            halves.append(_Half(number, rank.clock))
            sends[number, step.to].append(halves[-1])
        if step.source is not None:
            halves.append(_Half(number, rank.clock))
            receives[step.source, number].append(halves[-1])
        if step.blocking:
            rank.waits_for = tuple(halves)
