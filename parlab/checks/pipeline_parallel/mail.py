"""Why messages do not come: what each rank was doing with its mailbox, and what it had sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parlab.checks.endings import ending
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.pipeline_parallel.explained import (
    calls_itself,
    refused_to_itself,
    sent_to_itself,
)
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended, is_revoked
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.pipeline import Action, text

MISTAKES = Mistakes(
    blocking_send=(
        "all ranks wait in `send` until their receiver has come, and so nobody receives: two "
        "neighbours may send to each other first. `dist.isend` returns at once"
    ),
    mixed_up=(
        "{action} receives what was sent to {other}. Messages from one rank to another come in the "
        "order in which they were sent, unless a tag tells them apart, and so it is with what "
        "stays on its rank: kind, stage and micro-batch together say whose a tensor is"
    ),
    wrong_source=(
        "rank {rank} waits for {action}'s tensor from rank {got}, and rank {right} sends it: it "
        "needs something from stage {stage}. A forward pass gets its tensor from the stage before, "
        "a backward pass from the stage after"
    ),
    tags_differ=(
        "rank {rank} waits for a message with tag {got} for {action}, and rank {source} has sent "
        "it with tag {right}: both ends have to make the same tag of an action"
    ),
    not_sent="rank {rank} waits for {action}'s tensor, and rank {source} has sent nothing for it",
    not_received=(
        "rank {rank} is at its end, and has received nothing for {action}, which its sender waits "
        "for: `receive` is to take the message, and wait until it is there"
    ),
    sent_more=("rank {rank} sends {got} where {right} is asked for: each tensor once"),
    shared_state=(
        "two mailboxes of one rank share what is in them: what one has sent, the other waits for "
        "or hands out. What is assigned in the class body is there once for all; `__init__` makes "
        "each its own"
    ),
)


def source_of(action: Action) -> int:
    """The stage that has what an action needs."""
    return action.stage + (1 if action.kind == "backward" else -1)


@dataclass
class At:
    """What this rank is doing, and the calls by which it sent what each action needs."""

    trial: Trial
    doing: str = ""
    action: Action | None = None
    sent: list[tuple[Action, list[Call]]] = field(default_factory=list)

    def does(self, what: str, action: Action | None = None) -> None:
        if not is_revoked(self.trial.comm):
            self.doing, self.action = what, action

    def sends(self, action: Action, send: Callable[[], None]) -> None:
        self.does("send", action)
        before = len(self.trial.ledger.calls)
        try:
            send()
        finally:
            self.sent.append((action, self.trial.ledger.calls[before:]))


def explained(trial: Trial, at: At, endings: dict[int, Ended]) -> Finding | None:
    """The mistake, where it is certain, with what became of the ranks; collective over the lab."""
    calls = trial.gather(trial.ledger.calls)
    ats = [At(trial, *one) for one in trial.gather((at.doing, at.action, at.sent))]
    told = ending(endings)
    if told is None:
        return None
    open_ends = [rank for rank, ended in endings.items() if ended.kind != "returned"]
    found = (
        refused_to_itself(endings)
        or next((sent_to_itself(r, len(calls)) for r in endings if calls_itself(r, calls[r])), None)
        or next((f for r in endings if (f := collective(r, calls[r]))), None)
        or _other_waits(ats, open_ends)
        or next((f for r in open_ends if (f := _wrong_source(r, ats, calls[r]))), None)
        or _all_send(ats, endings)
        or next((f for r in open_ends if (f := _lost(r, ats, calls[r]))), None)
        or next((f for r in open_ends if (f := _sent_twice(r, ats[r]))), None)
        or next((f for r in open_ends if (f := _not_received(ats[r], ats, calls))), None)
    )
    lines = [*(found.text.splitlines() if found else ()), *told.text.splitlines()]
    raised = [rank for rank in open_ends if endings[rank].kind == "raised"]
    lines += [
        f"  rank {rank} is in `{_doing(ats[rank])}"
        for rank in raised or open_ends
        if ats[rank].doing
    ]
    return Finding("\n".join(lines), (found or told).mistake)


def collective(rank: int, calls: list[Call]) -> Finding | None:
    """Whether a rank calls what is no message."""
    other = next((call for call in calls if call.op not in (*SENDS, *RECEIVES)), None)
    return other and evidence(
        f"rank {rank} calls {other.op}: a tensor goes from one rank to one other"
    )


def _doing(at: At) -> str:
    return f"{at.doing}`" + (f" of {text(at.action)}" if at.action else "")


def _other_waits(ats: Sequence[At], open_ends: list[int]) -> Finding | None:
    waits = any(ats[rank].doing.startswith("finish of") for rank in open_ends)
    return MISTAKES.shared_state() if waits else None


def _all_send(ats: Sequence[At], endings: dict[int, Ended]) -> Finding | None:
    """All ranks wait, and some of them to send."""
    stuck = [rank for rank, ended in endings.items() if ended.kind == "stuck"]
    sends = len(stuck) == len(endings) and any(ats[rank].doing == "send" for rank in stuck)
    return MISTAKES.blocking_send() if sends else None


def _awaited(rank: int, ats: Sequence[At], calls: list[Call]) -> tuple[Call, Action, int] | None:
    """The receive in which a rank waits, for which action, and the rank that it must come from."""
    at = ats[rank]
    if at.doing != "receive" or not calls or calls[-1].op not in RECEIVES or at.action is None:
        return None
    return calls[-1], at.action, source_of(at.action) % len(ats)


def _wrong_source(rank: int, ats: Sequence[At], calls: list[Call]) -> Finding | None:
    """A rank waits for what another one sends."""
    if (awaited := _awaited(rank, ats, calls)) is None:
        return None
    call, action, source = awaited
    if call.source in (None, source):
        return None
    return MISTAKES.wrong_source(
        rank=rank, action=text(action), got=call.source, right=source, stage=source_of(action)
    )


def _lost(rank: int, ats: Sequence[At], calls: list[Call]) -> Finding | None:
    """Why what a rank is to receive does not come, or something else does."""
    if (awaited := _awaited(rank, ats, calls)) is None:
        return None
    call, action, source = awaited
    sent = next((sends for one, sends in reversed(ats[source].sent) if one == action), [])
    if not sent:
        return MISTAKES.not_sent(rank=rank, action=text(action), source=source)
    if call.tag not in [one.tag for one in sent]:
        return MISTAKES.tags_differ(
            rank=rank, action=text(action), source=source, got=call.tag, right=sent[0].tag
        )
    alike = [
        other
        for other, sends in ats[source].sent
        for one in sends
        if one.to == rank and one.tag == call.tag
    ]
    # Messages with one tag come in the order in which they were sent.
    before = sum(
        one.op in RECEIVES and (one.source, one.tag) == (source, call.tag) for one in calls[:-1]
    )
    if before < len(alike) and (other := alike[before]) != action:
        return MISTAKES.mixed_up(action=text(action), other=text(other))
    return None


def _sent_twice(rank: int, at: At) -> Finding | None:
    """A rank waits at the end for messages that nobody asked for."""
    for action, calls in at.sent:
        if at.doing == "finish" and len(calls) > 1:
            got = f"{len(calls)} messages for {text(action)}"
            return MISTAKES.sent_more(rank=rank, got=got, right="one")
    return None


def _not_received(at: At, ats: Sequence[At], calls: Sequence[list[Call]]) -> Finding | None:
    """A rank waits at the end for a message that its receiver, at the end too, has not taken."""
    for action, sends in at.sent if at.doing == "finish" else ():
        for call in sends:
            taken = [c.tag for c in calls[call.to] if c.op in RECEIVES]
            if ats[call.to].doing == "finish" and call.tag not in taken:
                return MISTAKES.not_received(rank=call.to, action=text(action))
    return None
