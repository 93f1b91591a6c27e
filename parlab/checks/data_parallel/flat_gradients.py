"""Exercise `flat_gradients`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, equal_states, is_a
from parlab.checks.data_parallel.models import Awkward, Tensors, awkward_model, gradients_of
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import Shard, gradients, state_of, tokens, trainable
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    frozen_in="the buffer is longer than {right} elements: the frozen weight is in it, too",
    tied_twice="the buffer is longer than {right} elements: the tied weight is in it twice",
    unused_left_out=(
        "the buffer is shorter than {right} elements: a trainable weight that no gradient reached "
        "yet is not in it"
    ),
    not_zeros="the buffer must start as zeros: backward() adds to what is there",
    copy=(
        "the gradient of {name} is a copy, not a view: it does not change with the buffer. "
        "Cutting (split, view_as) keeps the memory; cat, clone, stack and reshaping may copy"
    ),
    overlap="the gradients of {one} and {other} overlap in the buffer, at place {place}",
    no_gradient="{name} has no .grad: give every trainable parameter its view",
    frozen_gradient="frozen.weight has a .grad now, although it requires none",
    other_device=(
        "the buffer is made on torch's default device, wherever the parameters are: with a model "
        "on a GPU it fails. `parameter.new_zeros(…)` and `device=parameter.device` go where it is"
    ),
    weight_itself=(
        "the buffer is the memory of the weight {name}: what flattens a single tensor may return "
        "a view of it, and zeros in the one are zeros in the other"
    ),
    same_buffer="a second call gives the same buffer again: it must be a new one",
    leaves_the_buffer=(
        "after backward() the gradient of {name} is no longer in the buffer: `.grad` itself must "
        "be the view"
    ),
)


@check_of(MISTAKES)
def flat_gradients(check: Check) -> str:
    """Check that every gradient is a view, stays one, and has its own place in the buffer."""
    with check.trial() as trial:
        for dtype in (torch.float64, torch.float32):
            _in_dtype(trial, dtype)
        _of_one_parameter(trial)
        trial.situation = "with another default device than the model's"
        # Some operations on meta load much of torch first.
        made_on = trial.run_function(
            _device, check.function, awkward_model(trial.draw), seconds=60.0
        )
        trial.require(lambda: MISTAKES.other_device() if made_on == "meta" else None)
    return (
        "every gradient is a view into one buffer of zeros, before and after a backward pass, "
        "whatever was in .grad before"
    )


def _in_dtype(trial: Trial, dtype: torch.dtype) -> None:
    trial.situation = f"with a model of {dtype}"
    model = awkward_model(trial.draw).to(dtype)
    shard = tokens(trial.draw, model, 9)
    before, tensors = state_of(model), Tensors(model)
    flat = trial.run(model)
    trial.require(
        lambda: form(flat, model),
        lambda: views(flat, model),
        tensors.kept,
        lambda: equal_states(state_of(model), before, "{}", 0.0),
        lambda: filled(flat, model, shard),
    )
    trial.situation += ", called again after a backward pass"
    again = trial.run(model)
    trial.require(
        lambda: form(again, model),
        lambda: MISTAKES.same_buffer() if again.data_ptr() == flat.data_ptr() else None,
        lambda: views(again, model),
        lambda: filled(again, model, shard),
    )


def _of_one_parameter(trial: Trial) -> None:
    trial.situation = "with a model of one trainable parameter, the last"
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4, bias=False)).double()
    model[0].requires_grad_(False)
    before, tensors = state_of(model), Tensors(model)
    flat = trial.run(model)
    weight = model[1].weight
    shape = (weight.numel(),)
    trial.require(
        tensors.kept,
        lambda: is_a(flat, Tensor, "a torch.Tensor"),
        lambda: memory_of_its_own(flat, weight),
        lambda: equal_states(state_of(model), before, "{}", 0.0),
        lambda: equal(flat, torch.zeros(shape, dtype=torch.float64), "the buffer"),
        lambda: views(flat, model),
    )


def memory_of_its_own(flat: Tensor, weight: Tensor) -> Finding | None:
    shared = flat.data_ptr() == weight.data_ptr()
    return MISTAKES.weight_itself(name="1.weight") if shared else None


def form(flat: Any, model: Awkward) -> Finding | None:
    if found := is_a(flat, Tensor, "a torch.Tensor"):
        return found
    parameters = trainable(model)
    right, dtype = sum(p.numel() for p in parameters.values()), model.unused.dtype
    if flat.dim() != 1:
        return COMMON.wrong_shape(name="the buffer", got=tuple(flat.shape), right=(right,))
    if flat.dtype != dtype:
        return COMMON.wrong_dtype(name="the buffer", got=flat.dtype, right=dtype)
    known = {
        model.frozen.weight.numel(): MISTAKES.frozen_in(right=right),
        model.embed.weight.numel(): MISTAKES.tied_twice(right=right),
        -model.unused.numel(): MISTAKES.unused_left_out(right=right),
    }
    if more := flat.numel() - right:
        wrong = COMMON.wrong_shape(name="the buffer", got=(flat.numel(),), right=(right,))
        return known.get(more, wrong)
    if model.frozen.weight.grad is not None:
        return MISTAKES.frozen_gradient()
    missing = [name for name, p in parameters.items() if p.grad is None]
    return MISTAKES.no_gradient(name=missing[0]) if missing else None


def views(flat: Tensor, model: nn.Module) -> Finding | None:
    """Whether the gradients are zeros, each in its own part of the buffer; it is zeros again."""
    if not bool((flat == 0).all()):
        return MISTAKES.not_zeros()
    # Number the buffer's places, and look where the numbers turn up.
    with torch.no_grad():
        flat.copy_(torch.arange(1, flat.numel() + 1))
    owner: dict[int, str] = {}
    for name, parameter in trainable(model).items():
        for place in parameter.grad.detach().flatten().long().tolist():
            if not 0 < place <= flat.numel():
                return MISTAKES.copy(name=name)
            if place in owner:
                return MISTAKES.overlap(one=owner[place], other=name, place=place - 1)
            owner[place] = name
    with torch.no_grad():
        flat.zero_()
    return None


def filled(flat: Tensor, model: Awkward, shard: Shard) -> Finding | None:
    """Whether a backward pass leaves the gradients in the buffer, and adds there."""
    right = gradients(model, *shard)
    F.cross_entropy(model(shard[0]), shard[1]).backward()
    first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for name, parameter in trainable(model).items():
        if not first <= parameter.grad.data_ptr() < last:
            return MISTAKES.leaves_the_buffer(name=name)
    if flat.requires_grad:
        return evidence("the buffer requires a gradient itself: it is no part of the model")
    return equal_states(gradients_of(model), right, "after backward(), the gradient of {}", 1e-5)


def _device(function: Callable[[nn.Module], Tensor], model: Awkward) -> str:
    """The kind of device of the buffer, where nobody says which but the model's tensors."""
    try:
        with torch.device("meta"):
            return function(model).device.type
    except RuntimeError as error:
        return "meta" if "with device type 'meta'" in str(error) else "unknown"
