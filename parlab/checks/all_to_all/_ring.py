"""A sequence on several ranks, and a record of each block that ring attention computes."""

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlab import block_attention
from parlab.checks.all_to_all._attention import drawn
from parlab.checks.base.compare import same
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.ledger.calls import RECEIVES, SENDS

FUNCTIONS = {"forward": "attend", "backward": "attend_backward"}
BATCH, HEADS, HEAD_SIZE = 2, 2, 2


class Case:
    """A sequence on the ranks of a trial.

    Attributes:
        positions: (N, S/N), or None.
        length: S/N.
        whole: q, k, v, and the gradient of the output, of all ranks.
        given: this rank's parts of them, and a copy of `positions`, by name.
    """

    def __init__(
        self, trial: Trial, length: int, positions: Tensor | None, layout: str, dtype: torch.dtype
    ) -> None:
        self.trial, self.length, self.positions = trial, length, positions
        shape = BATCH, trial.size * length, HEADS, HEAD_SIZE
        self.whole, own = drawn(trial, shape, layout, dtype)
        self.given = dict(zip(("q", "k", "v", "gradient"), own, strict=True))
        self.given["positions"] = None if positions is None else positions.clone()

    @property
    def tolerance(self) -> float:
        return TOLERANCE if self.whole.dtype is torch.float64 else 1e-4

    @property
    def kept_bytes(self) -> int:
        """Bytes that the backward pass needs, even if copied: q, k, v, out, lse, and a mask."""
        size = self.given["q"].nbytes
        mask = 0 if self.positions is None else self.positions.nbytes + self.length**2
        return 6 * size + 2 * size // HEAD_SIZE + mask

    def visible(self, owner: int) -> Tensor:
        """Return which keys of `owner` the queries of this rank see."""
        if self.positions is None:
            return torch.ones(self.length, self.length, dtype=torch.bool)
        return self.positions[owner] <= self.positions[self.trial.rank][:, None]


@dataclass
class Block:
    """The state of the ring when a block is computed.

    Attributes:
        owner: the rank whose keys the block has; None if they are no rank's keys.
        step: the step of the ring.
        wrong_mask: whether this rank's queries see other keys than `visible` returns.
        idle: why no message for the next step is under way, or "".
        alive: how many blocks of earlier steps are in memory.
    """

    owner: int | None
    step: int
    wrong_mask: bool
    idle: str
    alive: int


def watched(which: str, case: Case, blocks: list[Block]) -> Callable[..., Any]:
    """Return `attend` or `attend_backward`, but recording a block in each call."""
    function = getattr(block_attention, FUNCTIONS[which])
    signature = inspect.signature(function)
    ranks, rank = case.trial.size, case.trial.rank
    keys = [k.transpose(1, 2) for k in case.whole[1].chunk(ranks, dim=1)]
    own = {case.given[name].untyped_storage()._cdata for name in "qkv"}
    earlier: dict[int, weakref.ref] = {}

    def called(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named).arguments
        k, visible, storage = given["k"], given["visible"], given["k"].untyped_storage()
        owner = next((r for r in range(ranks) if torch.equal(keys[r], k.detach())), None)
        step, wrong_mask = 0, False
        if owner is not None:
            step, right = (rank - owner) % ranks, case.visible(owner)
            wrong_mask = not same(torch.ones_like(right) if visible is None else visible, right)
        earlier.pop(storage._cdata, None)  # a buffer that is used again
        alive = sum(block() is not None for block in earlier.values())
        if storage._cdata not in own:
            earlier[storage._cdata] = weakref.ref(storage)
        blocks.append(Block(owner, step, wrong_mask, _idle(case, which, step), alive))
        return function(*arguments, **named)

    return called


def _idle(case: Case, which: str, step: int) -> str:
    """Return why no message for the next step is under way, or ""."""
    events = case.trial.group.events
    started = {e.what: e.op for e in events if e.kind == "start"}
    receives = {number for number, op in started.items() if op in RECEIVES}
    waited = receives & {e.what for e in events if e.kind == "wait"}
    if step == case.trial.size - 1:
        return ""
    if sum(op in SENDS for op in started.values()) <= step:
        return "nothing is being sent"
    if len(receives) <= step:
        return "no receive has started"
    if len(waited) > (step if which == "forward" else 2 * step):
        return "the next block was already waited for"
    return ""
