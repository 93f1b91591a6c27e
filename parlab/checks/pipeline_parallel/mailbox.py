"""Exercise `mailbox`."""

import functools
import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, is_a, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes
from parlab.checks.pipeline_parallel import mail, mistakes
from parlab.checks.pipeline_parallel.mail import At, source_of
from parlab.checks.trial import Trial
from parlab.memory import LiveStorages
from parlab.pipeline import Action, backward, forward, text
from parlab.pipeline.stages import Share, share_of

SECONDS = 10.0
PIECES = 3
ROUNDS = 2

MISTAKES = Mistakes(
    keeps_graph=(
        "the graph of a tensor that was sent is still alive: what is on its way, or waits in the "
        "mailbox, needs the numbers alone. `tensor.detach()` has them, without the graph"
    ),
    kept=(
        "{got} bytes of tensors are still there after `finish`, when all that was sent has left "
        "and all that came was received: a handle, and a list or dict, keeps what is in it. Take "
        "out what is done with (`pop`, `clear`)"
    ),
    requires_grad=(
        "what `receive` returns requires a gradient, or has a graph: it came from another rank, "
        "and autograd knows nothing of where it was made"
    ),
    **mail.MISTAKES.texts,
    **mistakes.texts_of("local_through_group", "to_itself"),
)


@dataclass
class Got:
    """What `receive` returned; of a tensor its numbers, so that the check keeps none."""

    value: Any
    requires_grad: bool = False

    @classmethod
    def of(cls, value: Any) -> "Got":
        if not isinstance(value, Tensor):
            return cls(value)
        graph = value.requires_grad or value.grad_fn is not None
        return cls(value.detach().clone(), graph)


@dataclass
class Seen:
    """What came, and what did not go."""

    got: dict[Action, Got]
    of_other: dict[Action, Got]  # what another mailbox had for the same actions
    graphs: list[Action]  # of the tensors whose graph was alive before `finish`
    changed: list[Action]
    kept: int  # bytes


@check_of(MISTAKES)
def mailbox(check: Check) -> str:
    """Check tensors sent all at once and received in another order; one and three stages a rank."""
    for trial in check.trials():
        for chunks, dtype, samples in (
            (1, torch.float64, [3, 3, 3]),
            # Of three stages on a rank alone, the second gets something from both sides.
            (3, torch.float32, [3, 3, 2]),
        ):
            trial.situation = f"{trial.size} ranks, {chunks} stage{'s' * (chunks > 1)} each"
            _one(trial, chunks, dtype, samples)
    return (
        "tensors come to the action that needs them, in any order, with no rank waiting to send, "
        f"and nothing is kept, on 1 to {check.world_size} ranks"
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
    at = At(trial)

    def run() -> list[Seen]:
        box, other = (trial.check.function(share, trial.group) for _ in range(2))
        return [_round(trial, at, box, other, share, *one) for one in rounds]

    told = partial(mail.explained, trial, at)
    _import_all()
    seen = trial.run_function(run, seconds=SECONDS, explain=told) or []
    trial.require(*(lambda n=n: comes(seen[n], rounds[n][0]) for n in range(ROUNDS)))
    trial.require(
        lambda: traffic(trial, share, actions, rounds),
        *(lambda n=n: leaves_alone(seen[n]) for n in range(ROUNDS)),
    )


@functools.cache
def _import_all() -> None:
    """What torch imports where storages are followed: not in the learner's time."""
    with LiveStorages():
        _Mark.apply(torch.zeros(1, requires_grad=True), _Token()).detach()


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
    trial: Trial,
    at: At,
    box: Any,
    other: Any,
    share: Share,
    sent: dict[Action, Tensor],
    out: Sequence[Action],
    back: Sequence[Action],
) -> Seen:
    """Send all, receive all; `other` is another mailbox, for what stays on this rank."""
    tokens: dict[Action, weakref.ref] = {}
    originals = {}
    own = [action for action in out if source_of(action) in share.own]
    local = [action for action in own if action.stage in share.own]
    with LiveStorages() as storages:
        for action in own:
            token = _Token()
            tokens[action] = weakref.ref(token)
            tensor = _Mark.apply(_as_sent(sent[action], action).requires_grad_(), token)
            originals[action] = tensor.detach()
            del token
            at.sends(action, lambda a=action, t=tensor: box.send(a, t))
            del tensor
        graphs = [action for action, token in tokens.items() if token() is not None]
        for action in local:
            other.send(action, _of_other(sent[action]))
        at.does("finish of a mailbox that has sent nothing")
        other.finish()
        got, of_other = {}, {}
        for action in back:
            if action.stage in share.own:
                at.does("receive", action)
                got[action] = box.receive(action, len(sent[action]))
        for action in local:
            of_other[action] = other.receive(action, len(sent[action]))
        at.does("finish")
        box.finish()
        changed = [a for a, tensor in originals.items() if not same(tensor, sent[a])]
        originals.clear()
    seen = Seen(_read(got), _read(of_other), graphs, changed, 0)
    got.clear()
    of_other.clear()
    if storages.live:
        gc.collect()  # what is in a circle
    seen.kept = storages.live
    return seen


def _as_sent(numbers: Tensor, action: Action) -> Tensor:
    """A copy; every third is a view in another order of memory."""
    return numbers.t().clone().contiguous().t() if action.micro_batch == 1 else numbers.clone()


def _of_other(numbers: Tensor) -> Tensor:
    return -1 - numbers


def _read(received: dict[Action, Any]) -> dict[Action, Got]:
    return {action: Got.of(value) for action, value in received.items()}


def comes(seen: Seen, sent: dict[Action, Tensor]) -> Finding | None:
    others = {action: _of_other(sent[action]) for action in seen.of_other}
    for got, right in ((seen.got, sent), (seen.of_other, others)):
        for action, one in got.items():
            tensor, name = one.value, f"what {text(action)} receives"
            if (found := is_a(tensor, Tensor, "a torch.Tensor", name)) is not None:
                return found
            if one.requires_grad:
                return MISTAKES.requires_grad()
            if not same(tensor, right[action]):
                return _instead(tensor, action, sent, others) or equal(tensor, right[action], name)
    return None


def _instead(
    tensor: Tensor, action: Action, sent: dict[Action, Tensor], others: dict[Action, Tensor]
) -> Finding | None:
    if action in others and (same(tensor, sent[action]) or same(tensor, others[action])):
        return MISTAKES.shared_state()
    other = next((a for a, one in sent.items() if same(tensor, one)), None)
    return other and MISTAKES.mixed_up(action=text(action), other=text(other))


def leaves_alone(seen: Seen) -> Finding | None:
    if seen.changed:
        return COMMON.argument_changed(name="`tensor`")
    if seen.graphs:
        return MISTAKES.keeps_graph()
    return MISTAKES.kept(got=seen.kept) if seen.kept else None


def traffic(trial: Trial, share: Share, actions: list[Action], rounds: list) -> Finding | None:
    if (found := mail.collective(trial.rank, trial.calls[trial.rank])) is not None:
        return found
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
            rank=trial.rank,
            got=f"{len(sends)} messages with {size} bytes",
            right=f"{len(going)} with {sum(going)} bytes",
        )
    return None
