"""What each rank does with its mailbox, to explain why messages do not arrive."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from parlab.checks.base.call_outcome import ending
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.watchdog import is_revoked
from parlab.checks.pipeline_parallel._hang_reasons import Endings, calls_itself, sends_to_itself
from parlab.ledger import Call
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.pipeline import Action, text


def source_of(action: Action) -> int:
    """Return the stage that has what an action needs."""
    return action.stage + (1 if action.kind == "backward" else -1)


@dataclass
class MailboxState:
    """What this rank is doing, and the messages that it has sent.

    Attributes:
        doing: the method, and of which mailbox.
        counts: messages sent and received before.
        sent: the messages of each `send`.
    """

    trial: Trial
    doing: str = ""
    action: Action | None = None
    counts: tuple[int, int] = (0, 0)
    sent: dict[Action, list[Call]] = field(default_factory=dict)

    def does(self, method: str, action: Action | None = None) -> None:
        if not is_revoked(self.trial.comm):
            self.doing, self.action = method, action
            ops = [call.op for call in self.trial.ledger.calls]
            self.counts = sum(op in SENDS for op in ops), sum(op in RECEIVES for op in ops)

    def send(self, box: Any, action: Action, tensor: Tensor) -> None:
        self.does("send", action)
        before = len(self.trial.ledger.calls)
        try:
            box.send(action, tensor)
        finally:
            self.sent[action] = self.trial.ledger.calls[before:]


def explain(
    trial: Trial, own: MailboxState, mistakes: Mistakes, endings: Endings
) -> Finding | None:
    """Name the mistake if it is certain, and say what each rank was doing. Collective."""
    calls = trial.gather(trial.ledger.calls)
    values = trial.gather((own.doing, own.action, own.counts, own.sent))
    states = [MailboxState(trial, *value) for value in values]
    outcome = ending(endings)
    if outcome is None:
        return None
    unfinished = [rank for rank, ended in endings.items() if ended.kind != "returned"]
    raised = [rank for rank in unfinished if endings[rank].kind == "raised"]
    stuck = len(unfinished) == len(endings) and not raised
    found = None
    if any(_taken(rank, states[rank], calls[rank]) for rank in unfinished):
        found = mistakes.shared_state()
    found = found or sends_to_itself([calls_itself(r, c) for r, c in enumerate(calls)], endings)
    found = found or _collective(calls)
    if found is None and any("another" in states[rank].doing for rank in unfinished):
        found = mistakes.shared_state()
    if found is None and stuck and any(state.doing == "send" for state in states):
        found = mistakes.blocking_send()
    lines = [found.text] if found else []
    lines += [outcome.text, *(_place(rank, states, calls) for rank in raised or unfinished)]
    return Finding("\n".join(filter(None, lines)), (found or outcome).mistake)


def _taken(rank: int, state: MailboxState, calls: list[Call]) -> bool:
    """Return whether a mailbox waits for what another one of this rank has taken."""
    handed_over = state.doing == "receive" and state.sent.get(state.action) == []
    return handed_over and bool(calls) and calls[-1].op in RECEIVES and calls[-1].source == rank


def _collective(calls: list[list[Call]]) -> Finding | None:
    for rank, own in enumerate(calls):
        for call in own:
            if call.op not in (*SENDS, *RECEIVES):
                return observed(f"rank {rank} calls {call.op}. Use only messages between two ranks")
    return None


def _place(rank: int, states: list[MailboxState], calls: list[list[Call]]) -> str:
    """Describe where a rank is; if it waits for a tensor, compare with what was sent for it."""
    state = states[rank]
    if not state.doing:
        return ""
    method, _, rest = state.doing.partition(" ")
    line = f"  rank {rank} is in `{method}` {rest}".rstrip()
    if state.action is None:
        return f"{line}. It has sent {state.counts[0]} messages and received {state.counts[1]}"
    line += f" of {text(state.action)}"
    call = calls[rank][-1] if calls[rank] else None
    if state.doing != "receive" or call is None or call.op not in RECEIVES:
        return line
    sender = source_of(state.action) % len(states)
    messages = [
        f"to rank {c.to} with tag {c.tag}" for c in states[sender].sent.get(state.action, [])
    ]
    return (
        f"{line}, from rank {call.source} with tag {call.tag}. For this action, rank {sender} "
        f"has sent {' and '.join(messages) or 'nothing'}"
    )
