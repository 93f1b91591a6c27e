"""Exercise `master_weights`: float32 training with the same gradients is the reference."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.models import Awkward

STEPS = 5
CLOSE = 1e-6  # of float32 numbers: an optimizer may add in another order
SECONDS = 20.0

MISTAKES = Mistakes(
    rebuilt_each_step=(
        "the copies are rounded to 16 bits in each step, which loses what a step adds below the "
        "last bit. Make the copies once; only the model's weights are rounded"
    ),
    not_copied_back=(
        "the model's weights are the same as before step(). Copy the rounded copies into them "
        "after the optimizer's step"
    ),
    gradient_invented=(
        "after collect(), self.master[{i}] has a gradient, but the parameter had none. Set it to "
        "None: an optimizer decays and moves everything that has a gradient"
    ),
    gradients_left=(
        "after collect(), a parameter still has its gradient, and the next backward pass will add "
        "to it. Set it to None"
    ),
    new_memory=(
        "after step(), a parameter is in other memory, so views of it keep the old numbers. Copy "
        "into it in place"
    ),
)

Gradients = list[Tensor | None]
OPTIMIZERS: dict[str, Callable] = {
    "SGD": partial(torch.optim.SGD, lr=2.0**-9, momentum=0.5, weight_decay=0.25),
    "Adam": partial(torch.optim.AdamW, lr=2.0**-12, weight_decay=0.5),
}
CASES = {
    f"{str(dtype)[6:]}, {name}": (dtype, make)
    for name, make in OPTIMIZERS.items()
    for dtype in (torch.float16, torch.bfloat16)
}


@check_of(MISTAKES, ranks=1)
def master_weights(check: Check) -> str:
    """Check steps too small for 16 bits, in both formats, with parameters without gradient."""
    with check.trial() as trial:
        for _, (dtype, make) in trial.cases(CASES):
            model, gradients = drawn(trial.draw, dtype)
            parameters = trainable(model)
            start = [p.detach().clone() for p in parameters]
            places = [p.data_ptr() for p in parameters]
            # First: an optimizer's first step imports modules, and the learner's time is limited.
            right = list(trained(start, make, gradients))
            rounded = list(trained(start, make, gradients, rounded=True))
            weights = trial.run(model, make, seconds=SECONDS)
            trial.require(lambda: constructed(weights, parameters, start))
            taken = trial.run_function(
                lambda: list(steps(weights, parameters, gradients)), seconds=SECONDS
            )
            before = start
            for number, step in enumerate(taken):
                trial.require(
                    lambda: collected(step, gradients[number]),
                    lambda: stepped(step, right[number], rounded[number]),
                    lambda: copied_back(step, before),
                    lambda: None if step.places == places else MISTAKES.new_memory(),
                )
                before = step.parameters
            found = trial.run_function(lambda: overflowed(weights, parameters), seconds=SECONDS)
            trial.require(lambda: overflow_kept(found))
    return "small steps add up, in float16 and bfloat16; where there is no gradient, nothing moves"


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def drawn(draw: Random, dtype: torch.dtype) -> tuple[nn.Module, list[Gradients]]:
    """Draw a model, and gradients for its steps. Some parameters have none, or not always."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        model = Awkward().to(dtype)
        parameters = trainable(model)
        never, sometimes, often, *_ = draw.sample(range(len(parameters)), len(parameters))
        gradients: list[Gradients] = []
        for step in range(STEPS):
            gradients.append([(0.1 * torch.randn(p.shape)).to(dtype) for p in parameters])
            gradients[-1][never] = None
            if step in (2, 3):
                gradients[-1][sometimes] = None
    if dtype == torch.bfloat16:  # float16 has none of these numbers
        parameters[often].detach().view(-1)[:2] = torch.tensor([2.0**20, 2.0**-30])
        gradients[0][often].view(-1)[:2] = torch.tensor([2.0**17, 2.0**-30])
    return model, gradients


def trained(
    start: list[Tensor], make: Callable, gradients: list[Gradients], rounded: bool = False
) -> Iterator[list[Tensor]]:
    """Yield float32 weights after each step; `rounded`: from weights in 16 bits."""
    weights = [nn.Parameter(p.float()) for p in start]
    optimizer = make(weights)
    for given in gradients:
        for weight, old, gradient in zip(weights, start, given, strict=True):
            if rounded:
                weight.data = weight.detach().to(old.dtype).float()
            weight.grad = None if gradient is None else gradient.float()
        optimizer.step()
        yield [weight.detach().clone() for weight in weights]


@dataclass
class Step:
    """One step of the learner's object."""

    gradients: Gradients  # of the copies, after collect()
    left: bool  # a gradient of a parameter, after collect()
    master: list[Tensor]
    parameters: list[Tensor]
    places: list[int]  # of the parameters in memory


def steps(
    weights: Any, parameters: list[nn.Parameter], gradients: list[Gradients]
) -> Iterator[Step]:
    """Collect and step, up to a step that changes the parameters' dtype."""
    dtypes = [p.dtype for p in parameters]
    for given in gradients:
        if [p.dtype for p in parameters] != dtypes:
            return
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        weights.collect()
        found = [None if m.grad is None else m.grad.detach().clone() for m in weights.master]
        left = any(p.grad is not None for p in parameters)
        weights.step()
        yield Step(
            found,
            left,
            [m.detach().clone() for m in weights.master],
            [p.detach().clone() for p in parameters],
            [p.data_ptr() for p in parameters],
        )
        for parameter in parameters:
            parameter.grad = None


def constructed(
    weights: Any, parameters: list[nn.Parameter], start: list[Tensor]
) -> Finding | None:
    """Require float32 copies, an optimizer on them, and an unchanged model."""
    if len(weights.master) != len(start):
        return observed(f"self.master has {len(weights.master)} tensors, expected {len(start)}")
    for i, (got, right) in enumerate(zip(weights.master, start, strict=True)):
        if not parameters[i].requires_grad:
            return observed(f"self.parameters[{i}] does not require a gradient any more")
        if (
            (found := has_type(got, nn.Parameter, "an nn.Parameter", f"self.master[{i}]"))
            or (found := equal(got.detach(), right.float(), f"self.master[{i}]"))
            or (found := equal(parameters[i].detach(), right, f"self.parameters[{i}]"))
        ):
            return found
    optimizer = getattr(weights, "optimizer", None)
    if found := has_type(optimizer, torch.optim.Optimizer, "an optimizer", "self.optimizer"):
        return found
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if [id(p) for p in held] == [id(p) for p in weights.master]:
        return None
    return observed("the parameters of self.optimizer are not those in self.master. Give it these")


def collected(step: Step, gradients: Gradients) -> Finding | None:
    """Require the parameters' gradients in float32, or None."""
    for i, (got, right) in enumerate(zip(step.gradients, gradients, strict=True)):
        if right is None:
            if got is not None:
                return MISTAKES.gradient_invented(i=i)
        elif found := equal(got, right.float(), f"after collect(), self.master[{i}].grad"):
            return found
    return MISTAKES.gradients_left() if step.left else None


def stepped(step: Step, right: list[Tensor], rounded: list[Tensor]) -> Finding | None:
    """Compare the copies with float32 weights, and with weights that are rounded in each step."""
    if all_same(step.master, right):
        return None
    after = [w.to(p.dtype).float() for w, p in zip(rounded, step.parameters, strict=True)]
    if all_same(step.master, rounded) or all_same(step.master, after):
        return MISTAKES.rebuilt_each_step()
    found = (
        equal(got, wanted, f"self.master[{i}]", CLOSE)
        for i, (got, wanted) in enumerate(zip(step.master, right, strict=True))
    )
    return next(filter(None, found))


def all_same(got: list[Tensor], right: list[Tensor], tolerance: float = CLOSE) -> bool:
    return all(same(a, b, tolerance) for a, b in zip(got, right, strict=True))


def copied_back(step: Step, before: list[Tensor]) -> Finding | None:
    """Require that the model has the values of the copies, rounded once."""
    for i, (got, copy) in enumerate(zip(step.parameters, step.master, strict=True)):
        if found := equal(got, copy.to(before[i].dtype), f"self.parameters[{i}]"):
            unchanged = all_same(step.parameters, before, 0.0)
            return MISTAKES.not_copied_back() if unchanged else found
    return None


def overflowed(weights: Any, parameters: list[nn.Parameter]) -> list[float]:
    """Collect gradients that begin with an infinity or NaN; return these numbers of the copies."""
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.ones_like(parameter)
        parameter.grad.view(-1)[0] = (torch.inf, -torch.inf, torch.nan)[i % 3]
    weights.collect()
    found = [master.grad.flatten()[0].item() for master in weights.master]
    for master in weights.master:
        master.grad = None
    return found


def overflow_kept(found: list[float]) -> Finding | None:
    """Require that collect() changes no infinity or NaN."""
    finite = [number for number in found if math.isfinite(number)]
    if finite:
        return observed(f"collect() turns an infinity or NaN into {finite[0]:g}. Leave it as it is")
    return None
