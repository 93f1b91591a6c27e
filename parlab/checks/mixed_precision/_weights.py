"""Master weights that record their steps, and requirements on them. A missing gradient is None."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.compare import equal, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only

Gradients = Sequence[Tensor | None]


class RecordingWeights:
    """Float32 copies of a model's 16-bit parameters. Records what each optimizer step gets."""

    def __init__(self, model: nn.Module, make_optimizer: Callable) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        halves = [parameter.detach() for parameter in self.parameters]
        self.master = [nn.Parameter(half.to(torch.float32)) for half in halves]
        self.optimizer = make_optimizer(self.master)
        self.optimizer.register_step_pre_hook(lambda *_: self._record())
        self.forget()

    def forget(self) -> None:
        """Clear the records."""
        self.steps = 0  # calls of step()
        self.given: list[Gradients] = []  # gradients, by optimizer step
        self.rates: list[float] = []
        self.before = [copy.detach().clone() for copy in self.master]

    def collect(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        for place, gradient in enumerate(gradients):
            self.parameters[place].grad = None
            self.master[place].grad = None if gradient is None else gradient.to(torch.float32)

    def step(self) -> None:
        self.steps += 1
        self.optimizer.step()
        with torch.no_grad():
            for place, copy in enumerate(self.master):
                self.parameters[place].copy_(copy)
        self.after = [copy.detach().clone() for copy in self.master]

    def changed(self) -> bool:
        """Return True if a copy has changed since the records were cleared."""
        return not all(torch.equal(a, b) for a, b in zip(self.master, self.before, strict=True))

    def _record(self) -> None:
        self.given.append(each(lambda g: g.detach().clone(), [m.grad for m in self.master]))
        self.rates += [group["lr"] for group in self.optimizer.param_groups]


def constructed(weights: Any, master: Mapping[str, Any], right: Sequence[Tensor]) -> Finding | None:
    """Require float32 copies with these values, by name, and an optimizer on them."""
    for (name, got), wanted in zip(master.items(), right, strict=True):
        if found := (
            has_type(got, nn.Parameter, "an nn.Parameter", name)
            or equal(got.detach(), wanted.float(), name)
        ):
            return found
    optimizer = weights.optimizer
    if found := has_type(optimizer, torch.optim.Optimizer, "an optimizer", "self.optimizer"):
        return found
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if held == [id(copy) for copy in master.values()]:
        return None
    return observed("self.optimizer has other parameters than self.master. Give it these")


def one_step(
    weights: RecordingWeights,
    right: Gradients,
    variants: Iterable[tuple[str, Gradients]],
    mistakes: Mistakes,
    tolerance: float,
) -> Finding | None:
    """Require one step() with the gradients `right`, or name the mistake whose gradients it uses.

    `tolerance` is relative to the largest number of a tensor.
    """
    if len(weights.given) > weights.steps:
        return observed("weights.optimizer.step() does not update the model. Call weights.step()")
    if weights.steps != 1:
        return observed(f"weights.step() is called {weights.steps} times, expected once")
    found = [
        differ(got, wanted, f"in weights.step(), the gradient of weights.master[{i}]", tolerance)
        for i, (got, wanted) in enumerate(zip(weights.given[0], right, strict=True))
    ]
    keys = (
        key
        for key, values in (variants if any(found) else ())
        if alike(weights.given[0], values, tolerance) and not alike(values, right, tolerance)
    )
    if mistake := the_only(mistakes, keys):
        return mistake
    for i, parameter in enumerate(weights.parameters):
        found.append(equal(weights.master[i].detach(), weights.after[i], f"weights.master[{i}]"))
        half = weights.after[i].to(parameter.dtype)
        found.append(equal(parameter.detach(), half, f"weights.parameters[{i}]"))
    return next(filter(None, found), None)


def differ(got: Any, right: Tensor | None, name: str, tolerance: float) -> Finding | None:
    """Compare one gradient, and report the number that differs most."""
    if right is None or got is None:
        return (
            None if got is right else observed(f"{name} is {_kind(got)}, expected {_kind(right)}")
        )
    difference = (got - right).abs()
    if bool((difference <= tolerance * right.abs().max()).all()):
        return None
    at = int(difference.argmax())  # that of a NaN, if any
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), right.shape))
    return observed(f"{name} at index {index} is {got[index]:.6g}, expected {right[index]:.6g}")


def alike(got: Gradients, right: Gradients, tolerance: float) -> bool:
    """Return True if all gradients agree."""
    return not any(differ(a, b, "", tolerance) for a, b in zip(got, right, strict=True))


def _kind(gradient: Tensor | None) -> str:
    return "None" if gradient is None else "a tensor"


def each(function: Callable[[Tensor], Tensor], gradients: Gradients) -> Gradients:
    """Apply a function to each gradient that is not None."""
    return [None if gradient is None else function(gradient) for gradient in gradients]


def flat(gradients: Gradients) -> Tensor:
    """Return the numbers of all gradients in one flat tensor."""
    return torch.cat([g.flatten() for g in gradients if g is not None])


def norm(gradients: Gradients) -> float:
    """Return the norm of all gradients together."""
    return flat(gradients).norm().item()


def clipped(gradients: Gradients, max_norm: float) -> Gradients:
    """Return gradients whose norm is at most `max_norm`."""
    factor = min(1.0, max_norm / max(norm(gradients), 1e-30))
    return each(lambda gradient: gradient * factor, gradients)
