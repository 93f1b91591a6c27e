"""Sequences that are split among ranks, and what a learner's ring attention does with them."""

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parlab import block_attention
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.memory import LiveStorages

FUNCTIONS = {"forward": "attend", "backward": "attend_backward"}
BATCH, HEADS, HEAD_SIZE = 2, 2, 2


@dataclass
class Case:
    """A sequence: row r of everything belongs to rank r.

    Attributes:
        positions: (N, S/N), or None.
        q, k, v, gradient: (N, B, S/N, a, d); `gradient` is that of the output.
        fused: whether q, k, and v are views of one tensor.
    """

    positions: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    gradient: Tensor
    fused: bool

    @property
    def ranks(self) -> int:
        return len(self.q)

    @property
    def length(self) -> int:
        return self.q.shape[2]

    @property
    def tolerance(self) -> float:
        return TOLERANCE if self.q.dtype == torch.float64 else 1e-4

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of one rank."""
        return 2 * self.k[0].nbytes

    @property
    def kept_bytes(self) -> int:
        """Bytes that the backward pass needs, even if copied: q, k, v, out, lse, and a mask."""
        mask = 0 if self.positions is None else self.positions.nbytes + self.length**2
        return 3 * self.block_bytes + 2 * self.q[0].nbytes // HEAD_SIZE + mask

    def visible(self, rank: int, owner: int) -> Tensor:
        """Return which keys of `owner` the queries of `rank` see."""
        if self.positions is None:
            return torch.ones(self.length, self.length, dtype=torch.bool)
        return self.positions[owner] <= self.positions[rank][:, None]

    def mask(self, rank: int) -> Tensor:
        """Return which of all keys the queries of `rank` see, (S/N, S)."""
        return torch.cat([self.visible(rank, owner) for owner in range(self.ranks)], 1)

    @functools.cached_property
    def gradients(self) -> list[list[Tensor]]:
        """The gradients of q, k, and v, for each rank."""
        inputs = [x.clone().requires_grad_() for x in (self.q, self.k, self.v)]
        outs = [
            attention(self, rank, self.mask(rank), (inputs[0][rank], *inputs[1:]))
            for rank in range(self.ranks)
        ]
        found = torch.autograd.grad(torch.stack(outs), inputs, self.gradient)
        return [[of_all[rank] for of_all in found] for rank in range(self.ranks)]


def attention(
    case: Case, rank: int, mask: Tensor, inputs: tuple[Tensor, ...] | None = None
) -> Tensor:
    """Return the attention of this rank's queries over all keys, (B, S/N, a, d)."""
    q, k, v = inputs or (case.q[rank], case.k, case.v)
    k, v = (x.transpose(0, 1).flatten(1, 2) for x in (k, v))
    scores = torch.einsum("bqad,bkad->baqk", q, k) / HEAD_SIZE**0.5
    probabilities = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("baqk,bkad->bqad", probabilities, v)


def _consecutive(trial: Trial, length: int) -> Tensor:
    return torch.arange(trial.size * length).view(trial.size, length)


def _zigzag(trial: Trial, length: int) -> Tensor:
    chunks = _consecutive(trial, length).view(2 * trial.size, -1)
    return torch.stack([torch.cat((chunks[r], chunks[-1 - r])) for r in range(trial.size)])


def _drawn(trial: Trial, length: int) -> Tensor:
    order = trial.draw.sample(range(trial.size * length), trial.size * length)
    return torch.tensor(order).view(trial.size, length)


LAYOUTS: dict[str, Callable[[Trial, int], Tensor | None]] = {
    "consecutive tokens": _consecutive,
    "no mask": lambda trial, length: None,
    "tokens in zigzag layout": _zigzag,
    "tokens in no order": _drawn,
    "no mask, in float32": lambda trial, length: None,
}


def drawn(trial: Trial, layout: Callable[[Trial, int], Tensor | None], name: str) -> Case:
    """Draw a sequence, the same on all ranks."""
    length = 2 * trial.draw.randrange(8, 11)
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    dtype = torch.float32 if "float32" in name else torch.float64
    shape = (4, trial.size, BATCH, length, HEADS, HEAD_SIZE)
    q, k, v, gradient = torch.randn(shape, generator=generator, dtype=dtype)
    if "no mask" in name:  # as `out.sum()` has it: not contiguous
        gradient = gradient[:, :1, :1].expand(shape[1:])
    return Case(layout(trial, length), q, k, v, gradient, "zigzag" in name)


@dataclass
class Block:
    """What had happened when a block was computed.

    Attributes:
        step: of the ring; None if the keys are no rank's.
        sends, receives, waited: how many sends and receives had started in this pass, and how many
            receives were waited for.
        alive: how many blocks of earlier steps were in memory.
    """

    step: int | None
    sends: int
    receives: int
    waited: int
    alive: int


@dataclass
class Run:
    """A forward and a backward pass on this rank.

    Attributes:
        arguments: by name: a tensor after the passes, and what it was before.
        sent: bytes of each message, by pass.
        blocks: those that were computed, by pass.
        kept: bytes that were in memory between the passes.
    """

    out: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    sent: dict[str, list[int]] = field(default_factory=dict)
    blocks: dict[str, list[Block]] = field(default_factory=lambda: {w: [] for w in FUNCTIONS})
    kept: int = 0


@functools.cache
def import_all() -> None:
    """Import the modules that torch imports at first use, which takes long on a busy machine."""
    with LiveStorages():
        _Identity.apply(torch.zeros(1, requires_grad=True)).backward()


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def passes(trial: Trial, case: Case) -> Run:
    """Run the function of the learner forward and backward."""
    run, own = Run(), trial.rank
    given = [x[own].clone() for x in (case.q, case.k, case.v)]
    if case.fused:
        given = list(torch.stack(given, 3).unbind(3))
    leaves = dict(zip("qkv", (x.requires_grad_() for x in given), strict=True))
    positions, gradient = case.positions, case.gradient[own]
    now = leaves | {"gradient": gradient}
    if positions is not None:
        positions = positions.clone()
        now["positions"] = positions
    before = {name: x.detach().clone() for name, x in now.items()}
    watched = _Watched(trial, case, run, given)
    trial.group.take_events()
    with LiveStorages() as storages:
        out = trial.check.function(
            *(x.view_as(x) for x in given),
            positions,
            trial.group,
            attend=watched.function("forward"),
            attend_backward=watched.function("backward"),
        )
        run.kept = storages.live
        run.sent["forward"] = watched.end_pass()
        if isinstance(out, Tensor) and out.requires_grad:
            out.backward(gradient if gradient.shape == out.shape else torch.ones_like(out))
            out = out.detach()
        run.sent["backward"] = watched.end_pass()
    run.out, run.gradients = out, {name: x.grad for name, x in leaves.items()}
    run.arguments = {name: (x.detach(), before[name]) for name, x in now.items()}
    return run


class _Watched:
    """`attend` and `attend_backward`, which record what has happened when they are called."""

    def __init__(self, trial: Trial, case: Case, run: Run, given: list[Tensor]) -> None:
        self.trial, self.case, self.run = trial, case, run
        self.own = {x.untyped_storage()._cdata for x in given}
        self.earlier: dict[str, dict[int, weakref.ref]] = {which: {} for which in FUNCTIONS}

    def function(self, which: str) -> Callable[..., Any]:
        function = getattr(block_attention, FUNCTIONS[which])
        signature = inspect.signature(function)

        def called(*arguments: Any, **named: Any) -> Any:
            self._record(which, signature.bind(*arguments, **named).arguments["k"])
            return function(*arguments, **named)

        return called

    def _record(self, which: str, k: Tensor) -> None:
        ranks = range(self.case.ranks)
        owners = [r for r in ranks if torch.equal(self.case.k[r].transpose(1, 2), k.detach())]
        step = (self.trial.rank - owners[0]) % len(ranks) if owners else None
        storage, earlier = k.untyped_storage(), self.earlier[which]
        earlier.pop(storage._cdata, None)  # a buffer that is used again
        alive = sum(one() is not None for one in earlier.values())
        if storage._cdata not in self.own:
            earlier[storage._cdata] = weakref.ref(storage)
        events = self.trial.group.events
        started = {e.what: e.op for e in events if e.kind == "start"}
        receives = {number for number, op in started.items() if op in RECEIVES}
        waited = receives & {e.what for e in events if e.kind == "wait"}
        sends = sum(op in SENDS for op in started.values())
        self.run.blocks[which].append(Block(step, sends, len(receives), len(waited), alive))

    def end_pass(self) -> list[int]:
        """Return the bytes of the messages that were sent since the end of the last pass."""
        events = self.trial.group.take_events()
        return [e.bytes for e in events if e.kind == "start" and e.op in SENDS]
