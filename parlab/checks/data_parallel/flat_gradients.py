"""Exercise `flat_gradients`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_states, has_type
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import State, gradients, state_of, tokens, trainable
from parlab.checks.base.trial import Trial
from parlab.checks.data_parallel._models import (
    Tensors,
    awkward_model,
    gradients_of,
    inside,
)

MISTAKES = Mistakes(
    other_elements=(
        "the buffer has {got} elements, expected {right}: those of each trainable tensor once, "
        "without gaps, and none of a frozen one"
    ),
    not_zeros="the buffer does not start as zeros. backward() adds to what is there",
    copy=(
        "the gradient of {name} is a copy, not a view: it does not change with the buffer. split "
        "and view_as return views; cat, clone, and stack copy"
    ),
    other_device=(
        "the buffer is on torch's default device, not on the parameters' device. Use "
        "`parameter.new_zeros(…)` or `device=parameter.device`"
    ),
    leaves_the_buffer=(
        "after backward(), the gradient of {name} is no longer in the buffer. `.grad` itself must "
        "be the view"
    ),
)


@check_of(MISTAKES, ranks=1)
def flat_gradients(check: Check) -> str:
    """Check that every gradient is a view, stays one, and has its own place in the buffer."""
    one = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4, bias=False)).double()
    one[0].requires_grad_(False)
    one[1].weight.grad = torch.ones_like(one[1].weight)
    one.eval()
    models = {
        "a float64 model": awkward_model(check.draw),
        "a float32 model": awkward_model(check.draw).float(),
        "a model with one trainable parameter, the last, which has a .grad": one,
    }
    with check.trial() as trial:
        for _, model in trial.cases(models):
            flat = _flat(trial, model)
            if model is not one:
                trial.require(lambda flat=flat, model=model: filled(flat, model, trial))
                trial.add("called again after a backward pass")
                again = _flat(trial, model)
                trial.require(lambda again=again, model=model: filled(again, model, trial))
        # Some operations on meta load much of torch first.
        made_on = trial.run_function(
            _device, check.function, awkward_model(trial.draw), seconds=60.0
        )
        trial.require(lambda: MISTAKES.other_device() if made_on == "meta" else None)
    return (
        "every gradient is a view into one buffer of zeros, before and after a backward pass, "
        "whatever was in .grad before"
    )


def _flat(trial: Trial, model: nn.Module) -> Tensor:
    """Return the buffer that the learner's function makes; fail if something is wrong with it."""
    before, tensors, training = state_of(model), Tensors(model), model.training
    old = {name: p.grad for name, p in trainable(model).items() if p.grad is not None}
    flat = trial.run(model)
    trial.require(
        lambda: has_type(flat, Tensor, "a torch.Tensor"),
        lambda: form(flat, model),
        lambda: is_new(flat, old),
        tensors.kept,
        lambda: mode(model, training),
        lambda: equal_states(state_of(model), before, "{}", 0.0),
        lambda: views(flat, model),
    )
    return flat


def form(flat: Tensor, model: nn.Module) -> Finding | None:
    parameters = trainable(model)
    right = sum(p.numel() for p in parameters.values())
    if flat.dim() == 1 and len(flat) != right:
        return MISTAKES.other_elements(got=len(flat), right=right)
    if flat.shape != (right,):
        return COMMON.wrong_shape(name="the buffer", got=tuple(flat.shape), right=(right,))
    if flat.dtype != (dtype := next(iter(parameters.values())).dtype):
        return COMMON.wrong_dtype(name="the buffer", got=flat.dtype, right=dtype)
    if flat.requires_grad:
        return observed("the buffer requires a gradient, expected a tensor without")
    for name, p in model.named_parameters():
        if (p.grad is not None) != p.requires_grad:
            got = "None" if p.grad is None else "a tensor"
            return observed(f"the .grad of {name}, requires_grad={p.requires_grad}, is {got}")
    return None


def mode(model: nn.Module, training: bool) -> Finding | None:
    if all(module.training == training for module in model.modules()):
        return None
    return observed(f"`training` of the model is {not training}, expected {training}, as before")


def is_new(flat: Tensor, old: State) -> Finding | None:
    """Require that the buffer is not the memory of a gradient from before the call."""
    for name, gradient in old.items():
        if inside(gradient, flat):
            return observed(
                f"the buffer is not a new buffer: the .grad that {name} had before is part of it"
            )
    return None


def views(flat: Tensor, model: nn.Module) -> Finding | None:
    """Require zeros, and a separate part of the buffer for each gradient. Zero it again."""
    if not bool((flat == 0).all()):
        return MISTAKES.not_zeros()
    # Number the buffer's elements, and find the numbers in the gradients.
    flat.copy_(torch.arange(1, flat.numel() + 1))
    found: set[int] = set()
    for name, parameter in trainable(model).items():
        numbers = parameter.grad.flatten().long().tolist()
        if not all(0 < number <= flat.numel() for number in numbers):
            return MISTAKES.copy(name=name)
        if twice := found.intersection(numbers):
            return observed(f"element {min(twice) - 1} of the buffer is in two gradients")
        found.update(numbers)
    flat.zero_()
    return None


def filled(flat: Tensor, model: nn.Module, trial: Trial) -> Finding | None:
    """Require that a backward pass adds the gradients to the buffer."""
    inputs, targets = tokens(trial.draw, model, 9)
    right = gradients(model, inputs, targets)
    F.cross_entropy(model(inputs), targets).backward()
    for name, parameter in trainable(model).items():
        if not inside(parameter.grad, flat):
            return MISTAKES.leaves_the_buffer(name=name)
    return equal_states(gradients_of(model), right, "after backward(), the gradient of {}", 1e-5)


def _device(function: Any, model: nn.Module) -> str:
    """Return the type of the buffer's device when torch's default device is "meta"."""
    try:
        with torch.device("meta"):
            return function(model).device.type
    except RuntimeError as error:
        return "meta" if "with device type 'meta'" in str(error) else "unknown"
