"""Sequences that are split among ranks, and what a learner's ring attention does with them."""

import functools
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
    def lse_bytes(self) -> int:
        return self.q[0].nbytes // HEAD_SIZE

    @property
    def mask_bytes(self) -> int:
        """Bytes of the positions and of one mask."""
        return 0 if self.positions is None else self.positions.nbytes + self.length**2

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
        parts = [self.part_of_gradients(rank) for rank in range(self.ranks)]
        of_k, of_v = (sum(part[i] for part in parts) for i in (1, 2))
        return [[parts[r][0], of_k[r], of_v[r]] for r in range(self.ranks)]

    def part_of_gradients(self, rank: int, owner: int | None = None) -> list[Tensor]:
        """Return what the queries of `rank` add to the gradients of q, k, and v.

        Those of k and v are for all ranks, or for one `owner`.
        """
        q, k, v = (x.clone().requires_grad_() for x in (self.q[rank], self.k, self.v))
        out = attention(self, rank, self.mask(rank), (q, k, v))
        of_q, of_k, of_v = torch.autograd.grad(out, (q, k, v), self.gradient[rank])
        return [of_q, of_k, of_v] if owner is None else [of_q, of_k[owner], of_v[owner]]

    def gradients_of_blocks(self, rank: int) -> list[Tensor]:
        """Return the gradients if each block had its own softmax."""
        of_q = torch.zeros_like(self.q[rank])
        of_kv = [torch.zeros_like(self.k[rank]) for _ in range(2)]
        for owner in range(self.ranks):
            of_q += self._of_block(rank, owner)[0]
            of_own = self._of_block(owner, rank)[1:]
            of_kv = [total + part for total, part in zip(of_kv, of_own, strict=True)]
        return [of_q, *of_kv]

    def _of_block(self, rank: int, owner: int) -> tuple[Tensor, ...]:
        q, k, v = (x.clone().requires_grad_() for x in (self.q[rank], self.k[owner], self.v[owner]))
        out, _ = block_attention.attend(
            *(x.transpose(1, 2) for x in (q, k, v)), self.visible(rank, owner)
        )
        return torch.autograd.grad(out.transpose(1, 2), (q, k, v), self.gradient[rank])


def attention(
    case: Case, rank: int, mask: Tensor, inputs: tuple[Tensor, ...] | None = None
) -> Tensor:
    """Return the attention of this rank's queries over all keys, (B, S/N, a, d)."""
    q, k, v = inputs or (case.q[rank], case.k, case.v)
    k, v = (x.transpose(0, 1).flatten(1, 2) for x in (k, v))
    scores = torch.einsum("bqad,bkad->baqk", q, k) / HEAD_SIZE**0.5
    probabilities = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("baqk,bkad->bqad", probabilities, v)


def by_block(case: Case, rank: int) -> list[Tensor]:
    """Return the output of each block alone, in the order of the owners."""
    found = []
    for owner in range(case.ranks):
        given = (case.q[rank], case.k[owner], case.v[owner])
        mask = case.visible(rank, owner)
        out, _ = block_attention.attend(*(x.transpose(1, 2) for x in given), mask)
        found.append(out.transpose(1, 2))
    return found


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
class Progress:
    """How many messages were started and waited for in a pass when a block was computed."""

    sends: int
    receives: int
    waited: int


@dataclass
class Run:
    """A forward and a backward pass on this rank.

    Attributes:
        arguments: by name: a tensor after the passes, and what it was before.
        sent: bytes of each message, by pass.
        steps: the step of each block that was computed, by pass; None if its keys are no rank's.
        progress: the messages at that time.
        alive: blocks of earlier steps that were in memory then, by pass.
        kept: bytes that were in memory between the passes.
    """

    out: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    sent: dict[str, list[int]] = field(default_factory=dict)
    steps: dict[str, list[int | None]] = field(default_factory=lambda: {w: [] for w in FUNCTIONS})
    progress: dict[str, list[Progress]] = field(default_factory=lambda: {w: [] for w in FUNCTIONS})
    alive: dict[str, list[int]] = field(default_factory=lambda: {w: [] for w in FUNCTIONS})
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
    functions = _Watched(trial, case, run, given)
    trial.group.take_events()
    with LiveStorages() as storages:
        out = trial.check.function(
            *(x.view_as(x) for x in given),
            positions,
            trial.group,
            attend=functions.attend,
            attend_backward=functions.attend_backward,
        )
        run.kept = storages.live
        run.sent["forward"] = functions.end_pass()
        if isinstance(out, Tensor) and out.requires_grad:
            out.backward(gradient if gradient.shape == out.shape else torch.ones_like(out))
            out = out.detach()
        run.sent["backward"] = functions.end_pass()
    run.out, run.gradients = out, {name: x.grad for name, x in leaves.items()}
    run.arguments = {name: (x.detach(), before[name]) for name, x in now.items()}
    return run


class _Watched:
    """`attend` and `attend_backward`, which record what has happened when they are called."""

    def __init__(self, trial: Trial, case: Case, run: Run, given: list[Tensor]) -> None:
        self.trial, self.case, self.run = trial, case, run
        self.own = {x.untyped_storage()._cdata for x in given}
        self.earlier: dict[str, dict[int, weakref.ref]] = {which: {} for which in FUNCTIONS}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Any:
        self._record("forward", k)
        return block_attention.attend(q, k, v, visible)

    def attend_backward(
        self,
        gradient: Tensor,
        out: Tensor,
        lse: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor | None,
    ) -> Any:
        self._record("backward", k)
        return block_attention.attend_backward(gradient, out, lse, q, k, v, visible)

    def _record(self, which: str, k: Tensor) -> None:
        owners = [
            rank
            for rank, one in enumerate(self.case.k)
            if torch.equal(one.transpose(1, 2), k.detach())
        ]
        step = (self.trial.rank - owners[0]) % self.case.ranks if owners else None
        self.run.steps[which].append(step)
        storage, earlier = k.untyped_storage(), self.earlier[which]
        earlier.pop(storage._cdata, None)  # a buffer that is used again
        self.run.alive[which].append(sum(one() is not None for one in earlier.values()))
        if storage._cdata not in self.own:
            earlier[storage._cdata] = weakref.ref(storage)
        operation = {e.what: e.op for e in self.trial.group.events if e.kind == "start"}
        waited = {e.what for e in self.trial.group.events if e.kind == "wait"}
        receives = {number for number, op in operation.items() if op in RECEIVES}
        sends = sum(op in SENDS for op in operation.values())
        self.run.progress[which].append(Progress(sends, len(receives), len(receives & waited)))

    def end_pass(self) -> list[int]:
        """Return the bytes of the messages that were sent since the end of the last pass."""
        events = self.trial.group.take_events()
        return [e.bytes for e in events if e.kind == "start" and e.op in SENDS]
