"""Exercise `master_weights`: float32 training with the same gradients is the reference."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_states, same_states
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.mixed_precision._weights import Gradients, constructed
from parlab.models import Awkward

STEPS = 5
CLOSE = 1e-6  # for float32 numbers, because an optimizer may add in another order
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

Values = dict[int, Tensor]  # by the parameter's place
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
            start = before = values(parameters)
            right = list(trained(start, make, gradients))
            rounded = list(trained(start, make, gradients, rounded=True))
            weights = trial.run(model, make, seconds=SECONDS)
            trial.require(lambda: copied(weights, parameters, start))
            for number, given in enumerate(gradients):
                got, left = trial.run_function(step, weights, parameters, given, seconds=SECONDS)
                master, now = values(weights.master), values(parameters)
                moved = [p.data_ptr() for p in parameters] != places
                trial.require(
                    lambda: collected(got, given),
                    lambda: MISTAKES.gradients_left() if left else None,
                    lambda: stepped(master, right[number], rounded[number], dtype),
                    lambda: copied_back(now, master, before, dtype),
                    lambda: MISTAKES.new_memory() if moved else None,
                    lambda: still_trained(parameters),
                )
                before = now
            numbers = torch.tensor([torch.inf, -torch.inf, torch.nan]).to(dtype)
            given = [numbers[i % 3].expand_as(p) for i, p in enumerate(parameters)]
            got, _ = trial.run_function(step, weights, parameters, given, seconds=SECONDS)
            trial.require(lambda: overflow_kept(got))
    return "small steps add up, in float16 and bfloat16; where there is no gradient, nothing moves"


def values(parameters: Iterable[Tensor]) -> Values:
    return {i: p.detach().clone() for i, p in enumerate(parameters)}


def drawn(draw: Random, dtype: torch.dtype) -> tuple[nn.Module, list[Gradients]]:
    """Draw a model, and gradients for its steps. Some parameters never or not always have one."""
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
    start: Values, make: Callable, gradients: list[Gradients], rounded: bool = False
) -> Iterator[Values]:
    """Yield float32 weights after each step. If `rounded`, each step starts from 16 bits."""
    weights = [nn.Parameter(p.float()) for p in start.values()]
    optimizer = make(weights)
    for given in gradients:
        for weight, old, gradient in zip(weights, start.values(), given, strict=True):
            if rounded:
                weight.data = weight.detach().to(old.dtype).float()
            weight.grad = None if gradient is None else gradient.float()
        optimizer.step()
        yield values(weights)


def step(weights: Any, parameters: list[nn.Parameter], given: Gradients) -> tuple[Gradients, bool]:
    """Collect and step. Return the copies' gradients, and whether any parameter still had one."""
    for parameter, gradient in zip(parameters, given, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    weights.collect()
    found = [None if m.grad is None else m.grad.detach().clone() for m in weights.master]
    left = any(p.grad is not None for p in parameters)
    weights.step()
    return found, left


def copied(weights: Any, parameters: list[nn.Parameter], start: Values) -> Finding | None:
    """Require float32 copies, an optimizer on them, and unchanged weights."""
    if len(weights.master) != len(start):
        return observed(f"self.master has {len(weights.master)} tensors, expected {len(start)}")
    master = {f"self.master[{i}]": copy for i, copy in enumerate(weights.master)}
    if found := constructed(weights, master, list(start.values())):
        return found
    return equal_states(values(parameters), start, "self.parameters[{}]", 0.0)


def still_trained(parameters: list[nn.Parameter]) -> Finding | None:
    for i, parameter in enumerate(parameters):
        if not parameter.requires_grad:
            return observed(f"self.parameters[{i}] does not require a gradient any more")
    return None


def collected(got: Gradients, given: Gradients) -> Finding | None:
    """Require the parameters' gradients in float32, or None."""
    right = {i: gradient.float() for i, gradient in enumerate(given) if gradient is not None}
    for i, gradient in enumerate(got):
        if gradient is not None and i not in right:
            return MISTAKES.gradient_invented(i=i)
    return equal_states(dict(enumerate(got)), right, "after collect(), self.master[{}].grad", 0.0)


def stepped(master: Values, right: Values, rounded: Values, dtype: torch.dtype) -> Finding | None:
    """Compare the copies with float32 weights, and with weights that are rounded in each step."""
    found = equal_states(master, right, "self.master[{}]", CLOSE)
    afterwards = {i: weight.to(dtype).float() for i, weight in rounded.items()}
    if found and any(same_states(master, wrong, CLOSE) for wrong in (rounded, afterwards)):
        return MISTAKES.rebuilt_each_step()
    return found


def copied_back(now: Values, master: Values, before: Values, dtype: torch.dtype) -> Finding | None:
    """Require that the model has the values of the copies, rounded once."""
    right = {i: copy.to(dtype) for i, copy in master.items()}
    found = equal_states(now, right, "self.parameters[{}]", 0.0)
    return MISTAKES.not_copied_back() if found and same_states(now, before, 0.0) else found


def overflow_kept(got: Gradients) -> Finding | None:
    """Require that collect() changes no infinity or NaN."""
    for number in (gradient.flatten()[0].item() for gradient in got):
        if math.isfinite(number):
            return observed(
                f"collect() turns an infinity or NaN into {number:g}. Leave it as it is"
            )
    return None
