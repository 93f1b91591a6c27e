"""What the checks on experts share: random routings, a reference router, and both passes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.compare import explained, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.ledger import Call

Variant = tuple[str, str, Tensor]  # the name of a gradient; a mistake; what it computes


def gradient_of(name: str) -> str:
    return f"the gradient of `{name}`"


def random(draw: Random, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal numbers, the same on all ranks."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


@dataclass(frozen=True)
class Routing:
    """Sizes of a routing. `dropped` is the share of choices that are dropped at least."""

    tokens: int
    hidden: int
    experts: int
    k: int
    capacity: int
    dropped: float = 0.0
    dtype: torch.dtype = torch.float64

    def drawn(self, draw: Random) -> tuple[Tensor, Tensor]:
        """Draw experts and slots, both (T, k): any slots, so not only those of a queue."""
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


def routed(probabilities_TE: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Return the experts and slots (T, k) that `route` must return."""
    experts_Tk = probabilities_TE.detach().argsort(1, descending=True)[:, :k]
    slots_Tk, used = torch.full_like(experts_Tk, -1), [0] * probabilities_TE.shape[1]
    for choice in range(k):
        for token, expert in enumerate(experts_Tk[:, choice].tolist()):
            if used[expert] < capacity:
                slots_Tk[token, choice] = used[expert]
                used[expert] += 1
    return experts_Tk, slots_Tk


@dataclass
class Run:
    """The output, the gradients by name, and the name of a changed argument, or ""."""

    output: Any
    gradients: dict[str, Any]
    changed: str
    has_graph: bool


def run(function: Callable[..., Any], inputs: Mapping[str, Any], gradient: Tensor) -> Run:
    """Call `function` with the values of `inputs`, in their order, and pass `gradient` back."""
    copies = {n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}
    leaves = {
        n: v.requires_grad_()
        for n, v in copies.items()
        if isinstance(v, Tensor) and v.is_floating_point()
    }
    # Views, because a leaf could not be changed in place.
    output = function(*(v.view_as(v) if n in leaves else v for n, v in copies.items()))
    has_graph = isinstance(output, Tensor) and output.requires_grad
    if has_graph and output.shape == gradient.shape:
        output.backward(gradient.clone())
        output = output.detach()
    changed = next((n for n, v in copies.items() if not same(v, inputs[n])), "")
    gradients = {gradient_of(name): leaf.grad for name, leaf in leaves.items()}
    return Run(output, gradients, changed, has_graph)


def unchanged(run: Run) -> Finding | None:
    return COMMON.argument_changed(name=f"`{run.changed}`") if run.changed else None


def all_to_alls(
    mistakes: Mistakes, which: str, calls: Sequence[Call], count: int, size: int
) -> Finding | None:
    """Require that a pass makes so many all-to-alls of `size` bytes, and no other calls."""
    made = [(call.op, call.bytes) for call in calls]
    if made == count * [("all_to_all", size)]:
        return None
    got = ", ".join(f"{op} of {of} bytes" for op, of in made) or "none"
    return mistakes.sends_more(which=which, got=got, right=size)


def gradients_are(
    got: Mapping[str, Tensor | None],
    right: Mapping[str, Tensor],
    mistakes: Mistakes,
    wrong: Iterable[Variant] = (),
    tolerance: float = TOLERANCE,
) -> Finding | None:
    """Compare gradients by name, and name the mistake that would compute the first wrong one."""
    for name, value in right.items():
        if got[name] is None:
            if value.any():
                return observed(
                    f"{name} is None: the result does not depend on it in autograd's graph"
                )
            continue
        variants = [(key, one) for what, key, one in wrong if what == name]
        found = explained(got[name], value, variants, mistakes, name, tolerance, with_name=True)
        if found is not None:
            return found
    return None
