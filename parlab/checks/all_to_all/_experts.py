"""Shared parts of the checks on experts: random routings, a reference router, and both passes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial


def random(draw: Random, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal numbers, the same on all ranks."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


@dataclass(frozen=True)
class Routing:
    """Sizes of a routing. A choice is dropped with probability `dropped`, or if no slot is free."""

    tokens: int
    hidden: int
    experts: int
    k: int
    capacity: int
    dropped: float = 0.0
    dtype: torch.dtype = torch.float64

    def drawn(self, draw: Random) -> tuple[Tensor, Tensor]:
        """Draw experts and slots, both (T, k). The slots are random, not in a queue's order."""
        generator = torch.Generator().manual_seed(draw.getrandbits(32))
        every = torch.rand(self.tokens, self.experts, generator=generator).argsort(1)
        experts_Tk, slots_Tk = every[:, : self.k].clone(), torch.full((self.tokens, self.k), -1)
        free = [
            torch.randperm(self.capacity, generator=generator).tolist() for _ in range(self.experts)
        ]
        kept = torch.rand(self.tokens, self.k, generator=generator) >= self.dropped
        for token, choice in kept.nonzero().tolist():
            if slots := free[experts_Tk[token, choice]]:
                slots_Tk[token, choice] = slots.pop()
        return experts_Tk, slots_Tk


def kept(experts_Tk: Tensor, slots_Tk: Tensor) -> list[tuple[int, int, int, int]]:
    """List token, choice, expert, and slot of each choice that is not dropped."""
    places = (slots_Tk >= 0).nonzero().tolist()
    return [(t, j, int(experts_Tk[t, j]), int(slots_Tk[t, j])) for t, j in places]


def slots(
    experts_Tk: Tensor, capacity: int, order: Iterable[tuple[int, int]] | None = None
) -> Tensor:
    """Return the slots (T, k) if choices take their experts' slots one after the other.

    `order` lists (token, choice). By default, all first choices come before all second ones.
    """
    slots_Tk, used = torch.full_like(experts_Tk, -1), Counter[int]()
    tokens, k = experts_Tk.shape
    for place in order or ((token, choice) for choice in range(k) for token in range(tokens)):
        expert = int(experts_Tk[place])
        if used[expert] < capacity:
            slots_Tk[place] = used[expert]
            used[expert] += 1
    return slots_Tk


def passes(
    function: Callable[..., Any], inputs: Mapping[str, Any], gradient: Tensor
) -> tuple[Any, dict[str, Any]]:
    """Call `function` with copies of `inputs`, in their order, and pass `gradient` back.

    Returns the output and the copies. Copies of floating-point tensors are leaves.
    """
    copies = {n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}
    for value in copies.values():
        if isinstance(value, Tensor) and value.is_floating_point():
            value.requires_grad_()
    # Views, because a leaf could not be changed in place.
    output = function(*(v.view_as(v) if isinstance(v, Tensor) else v for v in copies.values()))
    if isinstance(output, Tensor) and output.requires_grad and output.shape == gradient.shape:
        output.backward(gradient.clone())
        output = output.detach()
    return output, copies


def gradient_is(name: str, leaf: Tensor, right: Tensor, tolerance: float) -> Finding | None:
    """Compare the gradient of an argument with `right`. It may be None if `right` is zero."""
    name = f"the gradient of `{name}`"
    if leaf.grad is not None:
        return equal(leaf.grad, right, name, tolerance)
    if not right.any():
        return None
    return observed(f"{name} is None: the result does not depend on it in autograd's graph")


def all_to_alls(
    mistakes: Mistakes, which: str, trial: Trial, count: int, size: int
) -> Finding | None:
    """Require that a pass makes `count` all-to-alls of `size` bytes, and no other calls."""
    made = [(call.op, call.bytes) for call in trial.calls[trial.rank]]
    if trial.size == 1 or made == count * [("all_to_all", size)]:
        return None
    got = ", ".join(f"{op} of {of} bytes" for op, of in made) or "none"
    return mistakes.sends_more(which=which, got=got, right=size)
