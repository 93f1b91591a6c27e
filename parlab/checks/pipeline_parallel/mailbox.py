"""Exercise `mailbox`."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, equal_states, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.watchdog import is_revoked
from parlab.checks.pipeline_parallel import _messages
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.memory import LiveStorages
from parlab.pipeline import Action, backward, forward, text
from parlab.pipeline.stages import Share, share_of

SECONDS = 10.0
PIECES = 3
ROUNDS = 2

# The tensors that this rank's mailbox received, by action, those that another mailbox of this rank
# received, and what is wrong with graphs or with memory.
Round = tuple[dict[Action, Any], dict[Action, Any], Finding | None]

MISTAKES = Mistakes(
    blocking_send=(
        "a rank waits in `send` until its receiver has called a receive, so ranks wait for each "
        "other. Start the message with `dist.isend`, and wait for it only in `finish`"
    ),
    mixed_up=(
        "{action} receives what was sent to {other}. A tensor belongs to a kind, a stage, and a "
        "micro-batch together: use a tag, or a key, that distinguishes all of them"
    ),
    keeps_graph=(
        "the autograd graph of a tensor that was sent is still alive. Keep and send "
        "`tensor.detach()`, which is the same memory without the graph"
    ),
    kept=(
        "{got} bytes of tensors are still there after `finish`. Remove handles from your list, and "
        "tensors from your dict, when they have left or were received (`pop`, `clear`)"
    ),
    to_itself=_messages.MISTAKES.texts["to_itself"],
)


@check_of(MISTAKES)
def mailbox(check: Check) -> str:
    """Check tensors that are first sent and then received in another order, for 1 and 3 stages."""
    for trial in check.trials():
        # If a rank has all three stages, the second one receives from both sides.
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


def _source_of(action: Action) -> int:
    """Return the stage whose output or gradient an action needs."""
    return action.stage + (1 if action.kind == "backward" else -1)


def _rounds(trial: Trial, chunks: int, dtype: torch.dtype, samples: list[int]) -> None:
    stages = trial.size * chunks
    layers = [nn.Linear(4, 4).to(dtype) for _ in range(stages)]
    share = share_of(layers, torch.zeros(1, 4, dtype=dtype), max(trial.rank, 0), trial.size)
    pairs = [(s, i) for s in range(stages) for i in range(PIECES)]
    actions = [kind(s, i) for s, i in pairs for kind in (forward, backward)]
    actions = [action for action in actions if 0 <= _source_of(action) < stages]
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    plan = []
    for _ in range(ROUNDS):
        tensors = {
            action: torch.randn(samples[action.micro_batch], 4, generator=generator, dtype=dtype)
            for action in actions
        }
        orders = [trial.draw.sample(actions, len(actions)) for _ in range(2)]
        plan.append((tensors, *orders))
    state = _State(trial)

    def run() -> list[Round]:
        box, other = (trial.check.function(share, trial.group) for _ in range(2))
        return [_round(state, box, other, share, *one) for one in plan]

    rounds = trial.run_function(run, seconds=SECONDS, explain=state.explain) or []
    sizes = [
        tensor.nbytes
        for tensors, *_ in plan
        for action, tensor in tensors.items()
        if _source_of(action) in share.own and action.stage not in share.own
    ]
    trial.require(
        *(lambda n=n: _received(*rounds[n][:2], plan[n][0]) for n in range(ROUNDS)),
        lambda: _messages.sends_once(trial, len(sizes), sum(sizes)),
        lambda: next(filter(None, (problem for *_, problem in rounds)), None),
    )


@dataclass
class _State:
    """This rank's current call of its mailbox, and the messages it has sent for each action."""

    trial: Trial
    doing: str = ""
    action: Action | None = None
    sent: dict[Action, str] = field(default_factory=dict)

    def does(self, method: str, action: Action | None = None) -> None:
        if not is_revoked(self.trial.comm):
            self.doing, self.action = method, action

    def send(self, box: Any, action: Action, tensor: Tensor) -> None:
        self.does("send", action)
        before = len(self.trial.ledger.calls)
        try:
            box.send(action, tensor)
        finally:
            calls = [call for call in self.trial.ledger.calls[before:] if call.op in SENDS]
            self.sent[action] = " and ".join(f"to rank {c.to} with tag {c.tag}" for c in calls)

    def explain(self, endings: _messages.Endings) -> Finding:
        """Report what each rank was doing, and what was sent for its action. Collective."""
        trial, action = self.trial, self.action
        everyone = trial.gather((self.doing, self.sent))
        doing = f"is in `{self.doing}`" + (f" of {text(action)}" if action else "")
        call = next(iter(trial.ledger.calls[-1:]), None)
        if self.doing == "receive" and action and call and call.op in RECEIVES:
            sender = _source_of(action) % trial.size
            sent = everyone[sender][1].get(action) or "nothing"
            doing += (
                f", from rank {call.source} with tag {call.tag}. For this action, rank {sender} "
                f"has sent {sent}"
            )
        blocked = all(ended.kind == "stuck" for ended in endings.values()) and any(
            method == "send" for method, _ in everyone
        )
        found = MISTAKES.blocking_send() if blocked else None
        return _messages.explain(trial, endings, doing, found)


def _round(
    state: _State,
    box: Any,
    other: Any,
    share: Share,
    tensors: dict[Action, Tensor],
    send_order: Sequence[Action],
    receive_order: Sequence[Action],
) -> Round:
    """Send all tensors, then receive all. `other` gets only tensors that stay on this rank."""
    outgoing = [action for action in send_order if _source_of(action) in share.own]
    incoming = [action for action in receive_order if action.stage in share.own]
    local = [action for action in outgoing if action.stage in share.own]
    leaves, originals = [], {}
    with LiveStorages() as storages:
        for action in outgoing:
            # Only the graph keeps the leaf alive.
            leaf = _as_sent(tensors[action], action).requires_grad_()
            tensor = leaf * 1.0
            leaves.append(weakref.ref(leaf))
            originals[action] = tensor.detach()
            del leaf
            state.send(box, action, tensor)
            del tensor
        graphs = any(leaf() is not None for leaf in leaves)
        for action in local:
            other.send(action, _of_other(tensors[action]))
        state.does("finish of another mailbox")
        other.finish()
        received, of_other = {}, {}
        for action in incoming:
            state.does("receive", action)
            received[action] = box.receive(action, len(tensors[action]))
        state.does("receive of another mailbox")
        for action in local:
            of_other[action] = other.receive(action, len(tensors[action]))
        state.does("finish")
        box.finish()
        changed = not all(same(tensor, tensors[a]) for a, tensor in originals.items())
        originals.clear()
    results = _numbers(received), _numbers(of_other)
    everything = [x for x in (*received.values(), *of_other.values()) if isinstance(x, Tensor)]
    requires_grad = any(x.requires_grad for x in everything)
    for one in (received, of_other, everything):
        one.clear()
    if storages.live:
        gc.collect()  # reference cycles
    problem = None
    if changed:
        problem = COMMON.argument_changed(name="`tensor`")
    elif graphs:
        problem = MISTAKES.keeps_graph()
    elif requires_grad:
        problem = observed("what `receive` returns requires a gradient: return it without a graph")
    elif storages.live:
        problem = MISTAKES.kept(got=storages.live)
    return *results, problem


def _as_sent(numbers: Tensor, action: Action) -> Tensor:
    """Copy the numbers. The copy for micro-batch 1 is a view that is not contiguous."""
    return numbers.t().clone().contiguous().t() if action.micro_batch == 1 else numbers.clone()


def _of_other(numbers: Tensor) -> Tensor:
    """Return the numbers that the other mailbox sends instead."""
    return -1 - numbers


def _numbers(received: dict[Action, Any]) -> dict[Action, Any]:
    return {a: x.detach().clone() if isinstance(x, Tensor) else x for a, x in received.items()}


def _received(
    received: dict[Action, Any], of_other: dict[Action, Any], tensors: dict[Action, Tensor]
) -> Finding | None:
    for action, x in received.items():
        if difference := equal(x, tensors[action], f"what {text(action)} receives"):
            instead = (a for a, t in tensors.items() if isinstance(x, Tensor) and same(x, t))
            other = next(instead, action)
            if other == action:
                return difference
            return MISTAKES.mixed_up(action=text(action), other=text(other))
    name = "what {} receives from another mailbox of this rank"
    right = {text(action): _of_other(tensors[action]) for action in of_other}
    return equal_states({text(a): x for a, x in of_other.items()}, right, name, 0.0)
