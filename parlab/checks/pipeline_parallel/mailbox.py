"""Exercise `mailbox`."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, is_a, same
from parlab.checks.endings import ending
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.pipeline import Action, backward, forward, text
from parlab.pipeline.stages import Share, share_of

SECONDS = 15.0
PIECES = 3
ROUNDS = 2

MISTAKES = Mistakes(
    blocking_send=(
        "all ranks wait in `send` until their receiver has come, and so nobody receives: two "
        "neighbours may send to each other first. `dist.isend` returns at once"
    ),
    mixed_up=(
        "{action} receives what was sent to {other}: messages from one rank to another come in "
        "the order in which they were sent, unless a tag tells them apart"
    ),
    keeps_graph=(
        "the graph of a tensor that was sent is still alive: what is on its way, or waits in the "
        "mailbox, needs the numbers alone. `tensor.detach()` has them, without the graph"
    ),
    requires_grad=(
        "what `receive` returns requires a gradient, or has a graph: it came from another rank, "
        "and autograd knows nothing of where it was made"
    ),
    sent_more=(
        "rank {rank} sends {got} messages with {size} bytes where {right} with {right_size} are "
        "asked for: each tensor once"
    ),
)


@dataclass
class Seen:
    """What came, and what did not go."""

    got: dict[Action, Any]
    graphs: list[Action]  # of the tensors whose graph was alive before `finish`
    changed: list[Action]


@check_of(MISTAKES)
def mailbox(check: Check) -> str:
    """Check tensors sent all at once and received in another order; one and two stages a rank."""
    for trial in check.trials():
        for chunks, dtype, samples in (
            (1, torch.float64, [3, 3, 3]),
            (2, torch.float32, [3, 3, 2]),
        ):
            trial.situation = f"{trial.size} ranks, {chunks} stage{'s' * (chunks > 1)} each"
            _one(trial, chunks, dtype, samples)
    return (
        "tensors come to the action that needs them, in any order, with no rank waiting to send, "
        f"on 1 to {check.world_size} ranks"
    )


def needed(count: int) -> list[Action]:
    """All actions that need a tensor from another stage."""
    return [
        action
        for stage in range(count)
        for i in range(PIECES)
        for action in (forward(stage, i), backward(stage, i))
        if 0 <= source_of(action) < count
    ]


def source_of(action: Action) -> int:
    return action.stage + (1 if action.kind == "backward" else -1)


def _one(trial: Trial, chunks: int, dtype: torch.dtype, samples: list[int]) -> None:
    count, draw = trial.size * chunks, trial.draw
    stages = [nn.Linear(4, 4).to(dtype) for _ in range(count)]
    share = share_of(stages, torch.zeros(1, 4, dtype=dtype), max(trial.rank, 0), trial.size)
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    actions = needed(count)
    rounds = []
    for _ in range(ROUNDS):
        sent = {
            a: torch.randn(samples[a.micro_batch], 4, generator=generator, dtype=dtype)
            for a in actions
        }
        rounds.append(
            (sent, draw.sample(actions, len(actions)), draw.sample(actions, len(actions)))
        )

    def run() -> list[Seen]:
        box = trial.check.function(share, trial.group)
        return [_round(box, share, *one, samples) for one in rounds]

    seen = trial.run_function(run, seconds=SECONDS, explain=waiting) or []
    trial.require(*(lambda n=n: comes(seen[n], rounds[n][0]) for n in range(ROUNDS)))
    trial.require(
        lambda: traffic(trial, share, actions, rounds),
        *(lambda n=n: leaves_alone(seen[n]) for n in range(ROUNDS)),
    )


class _Token:
    """Lives as long as the graph that it is in."""


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _round(
    box: Any,
    share: Share,
    sent: dict[Action, Tensor],
    out: Sequence[Action],
    back: Sequence[Action],
    samples: list[int],
) -> Seen:
    tokens: dict[Action, weakref.ref] = {}
    originals = {}
    for action in out:
        if source_of(action) in share.own:
            token = _Token()
            tokens[action] = weakref.ref(token)
            tensor = _Mark.apply(sent[action].clone().requires_grad_(), token)
            originals[action] = tensor.detach()
            del token
            box.send(action, tensor)
            del tensor
    graphs = [action for action, token in tokens.items() if token() is not None]
    got = {
        action: box.receive(action, samples[action.micro_batch])
        for action in back
        if action.stage in share.own
    }
    box.finish()
    changed = [a for a, tensor in originals.items() if not same(tensor, sent[a])]
    return Seen(got, graphs, changed)


def waiting(endings: dict[int, Ended]) -> Finding | None:
    """All ranks wait on a line that sends."""
    stuck = [ended for ended in endings.values() if ended.kind == "stuck"]
    sending = [e for e in stuck if _waits_to_send(e.line)]
    if len(stuck) < len(endings) or not sending:
        return None
    found, told = MISTAKES.blocking_send(), ending(endings)
    return Finding(f"{found.text}\n{told.text}" if told else found.text, found.mistake)


def _waits_to_send(line: str) -> bool:
    """Whether a rank waits at a blocking send, or for one that it has begun in `send`."""
    return ("send(" in line and "isend(" not in line) or (" of send: " in line and ".wait(" in line)


def comes(seen: Seen, sent: dict[Action, Tensor]) -> Finding | None:
    for action, tensor in seen.got.items():
        name = f"what {text(action)} receives"
        if (found := is_a(tensor, Tensor, "a torch.Tensor", name)) is not None:
            return found
        if tensor.requires_grad or tensor.grad_fn is not None:
            return MISTAKES.requires_grad()
        if not same(tensor, sent[action]):
            other = next((a for a, one in sent.items() if same(tensor, one)), None)
            if other is not None:
                return MISTAKES.mixed_up(action=text(action), other=text(other))
            return equal(tensor, sent[action], name)
    return None


def leaves_alone(seen: Seen) -> Finding | None:
    if seen.changed:
        return COMMON.argument_changed(name="`tensor`")
    return MISTAKES.keeps_graph() if seen.graphs else None


def traffic(trial: Trial, share: Share, actions: list[Action], rounds: list) -> Finding | None:
    calls = trial.calls[trial.rank]
    if other := next((c for c in calls if c.op not in (*SENDS, *RECEIVES)), None):
        return evidence(
            f"rank {trial.rank} calls {other.op}: a tensor goes from one rank to one other"
        )
    sends = trial.sends(trial.rank)
    going = [
        sent[a].nbytes
        for sent, _, _ in rounds
        for a in actions
        if source_of(a) in share.own and a.stage not in share.own
    ]
    size = sum(call.bytes_sent for call in sends)
    if len(sends) != len(going) or size != sum(going):
        return MISTAKES.sent_more(
            rank=trial.rank, got=len(sends), size=size, right=len(going), right_size=sum(going)
        )
    return None
