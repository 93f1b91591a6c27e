"""Exercise `master_weights`: float32 training with the same gradients is the reference."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.mixed_precision._weights import Gradients, constructed
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

SGD = partial(torch.optim.SGD, lr=2.0**-9, momentum=0.5, weight_decay=0.25)
ADAM = partial(torch.optim.AdamW, lr=2.0**-12, weight_decay=0.5)
CASES = {
    "float16, SGD": (torch.float16, SGD),
    "bfloat16, SGD": (torch.bfloat16, SGD),
    "float16, Adam": (torch.float16, ADAM),
    "bfloat16, Adam": (torch.bfloat16, ADAM),
}


@check_of(MISTAKES, ranks=1)
def master_weights(check: Check) -> str:
    """Check steps too small for 16 bits, in both formats, with parameters without gradient."""
    with check.trial() as trial:
        for _, (dtype, make) in trial.cases(CASES):
            model, gradients = drawn(trial.draw, dtype)
            parameters = [p for p in model.parameters() if p.requires_grad]
            places = [p.data_ptr() for p in parameters]
            before = values(parameters)
            # First: an optimizer's first step imports modules, and the learner's time is limited.
            right = list(trained(before, make, gradients))
            rounded = list(trained(before, make, gradients, rounded=True))
            weights = trial.run(model, make, seconds=SECONDS)
            trial.require(lambda: copied(weights, parameters, before))
            for number, given in enumerate(gradients):
                got, left = trial.run_function(step, weights, parameters, given, seconds=SECONDS)
                trial.require(
                    lambda: collected(got, given),
                    lambda: MISTAKES.gradients_left() if left else None,
                    lambda: stepped(weights.master, right[number], rounded[number], dtype),
                    lambda: copied_back(parameters, weights.master, before),
                    lambda: new_memory(parameters, places),
                )
                before = values(parameters)
            numbers = torch.tensor([torch.inf, -torch.inf, torch.nan]).to(dtype)
            given = [numbers[i % 3].expand_as(p) for i, p in enumerate(parameters)]
            got, _ = trial.run_function(step, weights, parameters, given, seconds=SECONDS)
            trial.require(lambda: overflow_kept(got))
    return "small steps add up, in float16 and bfloat16; where there is no gradient, nothing moves"


def values(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [p.detach().clone() for p in parameters]


def drawn(draw: Random, dtype: torch.dtype) -> tuple[nn.Module, list[Gradients]]:
    """Draw a model, and gradients for its steps. Some parameters have none, or not always."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        model = Awkward().to(dtype)
        parameters = [p for p in model.parameters() if p.requires_grad]
        never, sometimes, often, *_ = draw.sample(range(len(parameters)), len(parameters))
        gradients: list[Gradients] = []
        for number in range(STEPS):
            gradients.append([(0.1 * torch.randn(p.shape)).to(dtype) for p in parameters])
            gradients[-1][never] = None
            if number in (2, 3):
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
        yield values(weights)


def step(weights: Any, parameters: list[nn.Parameter], given: Gradients) -> tuple[Gradients, bool]:
    """Collect and step; return the copies' gradients, and whether a parameter's was left."""
    for parameter, gradient in zip(parameters, given, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    weights.collect()
    found = [None if m.grad is None else m.grad.detach().clone() for m in weights.master]
    left = any(p.grad is not None for p in parameters)
    weights.step()
    return found, left


def copied(weights: Any, parameters: list[nn.Parameter], start: list[Tensor]) -> Finding | None:
    """Require float32 copies, an optimizer on them, and an unchanged model."""
    if len(weights.master) != len(start):
        return observed(f"self.master has {len(weights.master)} tensors, expected {len(start)}")
    master = {f"self.master[{i}]": copy for i, copy in enumerate(weights.master)}
    found = constructed(weights, master, start)
    for i, (parameter, right) in enumerate(zip(parameters, start, strict=True)):
        found = found or equal(parameter.detach(), right, f"self.parameters[{i}]")
        if not parameter.requires_grad:
            return observed(f"self.parameters[{i}] does not require a gradient any more")
    return found


def collected(got: Gradients, given: Gradients) -> Finding | None:
    """Require the parameters' gradients in float32, or None."""
    for i, (copy, right) in enumerate(zip(got, given, strict=True)):
        if right is None and copy is not None:
            return MISTAKES.gradient_invented(i=i)
        name = f"after collect(), self.master[{i}].grad"
        if right is not None and (found := equal(copy, right.float(), name)):
            return found
    return None


def stepped(
    master: list[Tensor], right: list[Tensor], rounded: list[Tensor], dtype: torch.dtype
) -> Finding | None:
    """Compare the copies with float32 weights, and with weights that are rounded in each step."""
    for i, (got, wanted) in enumerate(zip(master, right, strict=True)):
        if found := equal(got.detach(), wanted, f"self.master[{i}]", CLOSE):
            before_or_after = (rounded, [weight.to(dtype).float() for weight in rounded])
            if any(all(map(close, master, wrong)) for wrong in before_or_after):
                return MISTAKES.rebuilt_each_step()
            return found
    return None


def close(got: Tensor, right: Tensor) -> bool:
    return same(got, right, CLOSE)


def copied_back(
    parameters: list[nn.Parameter], master: list[Tensor], before: list[Tensor]
) -> Finding | None:
    """Require that the model has the values of the copies, rounded once."""
    for i, (got, copy) in enumerate(zip(values(parameters), master, strict=True)):
        if found := equal(got, copy.detach().to(before[i].dtype), f"self.parameters[{i}]"):
            unchanged = all(map(same, parameters, before))
            return MISTAKES.not_copied_back() if unchanged else found
    return None


def new_memory(parameters: list[nn.Parameter], places: list[int]) -> Finding | None:
    return None if [p.data_ptr() for p in parameters] == places else MISTAKES.new_memory()


def overflow_kept(got: Gradients) -> Finding | None:
    """Require that collect() changes no infinity or NaN."""
    for number in (gradient.flatten()[0].item() for gradient in got):
        if math.isfinite(number):
            return observed(
                f"collect() turns an infinity or NaN into {number:g}. Leave it as it is"
            )
    return None
