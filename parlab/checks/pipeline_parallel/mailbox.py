"""Exercise `mailbox`."""

import functools
import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.pipeline_parallel import _hang_reasons
from parlab.checks.pipeline_parallel._mailbox_states import MailboxState, explain, source_of
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.memory import LiveStorages
from parlab.pipeline import Action, backward, forward, text
from parlab.pipeline.stages import Share, share_of

SECONDS = 10.0
PIECES = 3
ROUNDS = 2

MISTAKES = Mistakes(
    blocking_send=(
        "all ranks wait in `send` until their receiver has come, so no rank receives. Use "
        "`dist.isend`, which returns at once"
    ),
    mixed_up=(
        "{action} receives what was sent to {other}. A tensor belongs to a kind, a stage and a "
        "micro-batch together: use a tag that distinguishes all of them"
    ),
    shared_state=(
        "two mailboxes of one rank share their tensors: one waits for, or returns, what was sent "
        "with the other. Create lists and dicts in `__init__`, not in the class body"
    ),
    keeps_graph=(
        "the autograd graph of a tensor that was sent is still alive. Keep and send "
        "`tensor.detach()`, which is the same memory without the graph"
    ),
    kept=(
        "{got} bytes of tensors are still there after `finish`. Remove handles from your list, and "
        "tensors from your dict, when they have left or were received (`pop`, `clear`)"
    ),
    requires_grad=(
        "what `receive` returns requires a gradient or has a graph. Return it without: the caller "
        "decides about gradients"
    ),
    to_itself=_hang_reasons.MISTAKES.texts["to_itself"],
)


@dataclass
class Round:
    """The record of one round of sending and receiving on this rank.

    Attributes:
        received: the received tensors, by action.
        received_by_other: the tensors that another mailbox received for the same actions.
        requires_grad: whether a received tensor requires a gradient, or has a graph.
        graphs: the number of tensors whose graph was alive before `finish`.
        changed: whether a sent tensor has changed.
        kept: bytes of tensors after `finish`.
    """

    received: dict[Action, Any]
    received_by_other: dict[Action, Any]
    requires_grad: bool
    graphs: int
    changed: bool
    kept: int = 0


@check_of(MISTAKES)
def mailbox(check: Check) -> str:
    """Check tensors sent all at once and received in another order; one and three stages a rank."""
    for trial in check.trials():
        # If a rank has all three stages, the second gets something from both sides.
        cases = {
            "1 stage each": (1, torch.float64, [3, 3, 3]),
            "3 stages each": (3, torch.float32, [3, 3, 2]),
        }
        for _, case in trial.cases(cases):
            _rounds(trial, *case)
    return (
        "tensors come to the action that needs them, in any order, with no rank waiting to send, "
        f"and nothing is kept, on 1 to {check.world_size} ranks"
    )


def _rounds(trial: Trial, chunks: int, dtype: torch.dtype, samples: list[int]) -> None:
    stages = trial.size * chunks
    layers = [nn.Linear(4, 4).to(dtype) for _ in range(stages)]
    share = share_of(layers, torch.zeros(1, 4, dtype=dtype), max(trial.rank, 0), trial.size)
    pairs = [(s, i) for s in range(stages) for i in range(PIECES)]
    actions = [kind(s, i) for s, i in pairs for kind in (forward, backward)]
    actions = [action for action in actions if 0 <= source_of(action) < stages]
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    plan = []
    for _ in range(ROUNDS):
        shapes = {action: (samples[action.micro_batch], 4) for action in actions}
        tensors = {
            action: torch.randn(shape, generator=generator, dtype=dtype)
            for action, shape in shapes.items()
        }
        orders = [trial.draw.sample(actions, len(actions)) for _ in range(2)]
        plan.append((tensors, *orders))
    state = MailboxState(trial)

    def run() -> list[Round]:
        box, other = (trial.check.function(share, trial.group) for _ in range(2))
        return [_round(state, box, other, share, *one) for one in plan]

    _import_all()
    reason = functools.partial(explain, trial, state, MISTAKES)
    rounds = trial.run_function(run, seconds=SECONDS, explain=reason) or []
    trial.require(*(lambda n=n: _received(rounds[n], plan[n][0]) for n in range(ROUNDS)))
    trial.require(
        lambda: _messages(trial, share, [tensors for tensors, *_ in plan]),
        *(lambda n=n: _left_alone(rounds[n]) for n in range(ROUNDS)),
    )


@functools.cache
def _import_all() -> None:
    """Import the modules that torch imports at first use, which takes long on a busy machine."""
    with LiveStorages():
        _Mark.apply(torch.zeros(1, requires_grad=True), _Token()).detach()


class _Token:
    """Lives as long as the graph that contains it."""


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _round(
    state: MailboxState,
    box: Any,
    other: Any,
    share: Share,
    tensors: dict[Action, Tensor],
    send_order: Sequence[Action],
    receive_order: Sequence[Action],
) -> Round:
    """Send all tensors, then receive all. `other` has only those that stay on this rank."""
    outgoing = [action for action in send_order if source_of(action) in share.own]
    incoming = [action for action in receive_order if action.stage in share.own]
    local = [action for action in outgoing if action.stage in share.own]
    tokens, originals = [], {}
    with LiveStorages() as storages:
        for action in outgoing:
            token = _Token()
            tokens.append(weakref.ref(token))
            tensor = _Mark.apply(_as_sent(tensors[action], action).requires_grad_(), token)
            originals[action] = tensor.detach()
            del token
            state.send(box, action, tensor)
            del tensor
        graphs = sum(token() is not None for token in tokens)
        for action in local:
            other.send(action, _of_other(tensors[action]))
        state.does("finish of another mailbox")
        other.finish()
        received, of_other = {}, {}
        for action in incoming:
            state.does("receive", action)
            received[action] = box.receive(action, len(tensors[action]))
        for action in local:
            of_other[action] = other.receive(action, len(tensors[action]))
        state.does("finish")
        box.finish()
        changed = not all(same(tensor, tensors[a]) for a, tensor in originals.items())
        originals.clear()
    everything = [x for x in (*received.values(), *of_other.values()) if isinstance(x, Tensor)]
    requires_grad = any(x.requires_grad or x.grad_fn is not None for x in everything)
    result = Round(_numbers(received), _numbers(of_other), requires_grad, graphs, changed)
    for one in (received, of_other, everything):
        one.clear()
    if storages.live:
        gc.collect()  # reference cycles
    result.kept = storages.live
    return result


def _as_sent(numbers: Tensor, action: Action) -> Tensor:
    """Copy the numbers; every third copy is a view that is not contiguous."""
    return numbers.t().clone().contiguous().t() if action.micro_batch == 1 else numbers.clone()


def _of_other(numbers: Tensor) -> Tensor:
    """Return what the other mailbox sends instead."""
    return -1 - numbers


def _numbers(received: dict[Action, Any]) -> dict[Action, Any]:
    return {a: x.detach().clone() if isinstance(x, Tensor) else x for a, x in received.items()}


def _received(result: Round, tensors: dict[Action, Tensor]) -> Finding | None:
    others = {action: _of_other(tensors[action]) for action in result.received_by_other}
    for received, right in ((result.received, tensors), (result.received_by_other, others)):
        for action, x in received.items():
            name = f"what {text(action)} receives"
            if found := has_type(x, Tensor, "a torch.Tensor", name):
                return found
            if difference := equal(x, right[action], name):
                if action in others and (same(x, tensors[action]) or same(x, others[action])):
                    return MISTAKES.shared_state()
                instead = next((a for a, one in tensors.items() if same(x, one)), None)
                if instead is None or instead == action:
                    return difference
                return MISTAKES.mixed_up(action=text(action), other=text(instead))
    return MISTAKES.requires_grad() if result.requires_grad else None


def _left_alone(result: Round) -> Finding | None:
    if result.changed:
        return COMMON.argument_changed(name="`tensor`")
    if result.graphs:
        return MISTAKES.keeps_graph()
    return MISTAKES.kept(got=result.kept) if result.kept else None


def _messages(trial: Trial, share: Share, rounds: Sequence[dict[Action, Tensor]]) -> Finding | None:
    for call in trial.calls[trial.rank]:
        if call.op not in (*SENDS, *RECEIVES):
            return observed(f"it calls {call.op}. Use only messages between two ranks")
    sizes = [
        tensor.nbytes
        for tensors in rounds
        for action, tensor in tensors.items()
        if source_of(action) in share.own and action.stage not in share.own
    ]
    sends = trial.sends(trial.rank)
    size = sum(call.bytes_sent for call in sends)
    if (len(sends), size) == (len(sizes), sum(sizes)):
        return None
    return observed(
        f"it sends {len(sends)} messages with {size} bytes, expected {len(sizes)} "
        f"with {sum(sizes)}: each tensor once"
    )
