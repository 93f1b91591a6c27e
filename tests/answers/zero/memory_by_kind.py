"""Answers to `memory_by_kind`."""

from types import MappingProxyType

import torch
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.answers import Answers

answers = Answers("memory_by_kind")

PARAMETERS = '"parameters": sum(p.nbytes for p in parameters)'
GRADIENTS = '"gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None)'
STATES = '"optimizer_states": sum(t.nbytes for t in states if isinstance(t, torch.Tensor))'
LIST = "parameters = list(model.parameters())"

answers.edit(
    "tied_twice",
    "under_both_names",
    (LIST, "parameters = [p for _, p in model.named_parameters(remove_duplicate=False)]"),
)
answers.edit(
    "tied_twice",
    "state_dict",
    (PARAMETERS, '"parameters": sum(t.nbytes for t in model.state_dict().values())'),
)
answers.edit(
    "frozen_left_out",
    "trainable_only",
    (PARAMETERS, '"parameters": sum(p.nbytes for p in parameters if p.requires_grad)'),
)
answers.edit(
    "gradients_assumed",
    "a_gradient_each",
    (GRADIENTS, '"gradients": sum(p.nbytes for p in parameters)'),
)
for name, some in {"first": "parameters[1:]", "last": "parameters[:-1]"}.items():
    answers.edit(
        None,
        f"{name}_gradient_left_out",
        (GRADIENTS, GRADIENTS.replace("in parameters", f"in {some}")),
    )
answers.edit("numbers", "numel", (PARAMETERS, PARAMETERS.replace("nbytes", "numel()")))
answers.edit(
    "four_bytes", "float32_assumed", (PARAMETERS, PARAMETERS.replace("p.nbytes", "4 * p.numel()"))
)
answers.edit(
    "states_assumed",
    "two_moments_each",
    (STATES, '"optimizer_states": 2 * sum(p.nbytes for p in parameters if p.requires_grad)'),
)
answers.edit("raises", "none_counted", (GRADIENTS, GRADIENTS.replace(" if p.grad is not None", "")))
answers.edit(
    "raises",
    "numbers_counted_as_tensors",
    (STATES, STATES.replace(" if isinstance(t, torch.Tensor)", "")),
    says="AttributeError",
)
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.wrong("counters_left_out")
def counters_left_out(model, optimizer):
    states = [t for state in optimizer.state.values() for t in state.values()]
    right = answers.reference()(model, optimizer)
    return right | {"optimizer_states": sum(t.nbytes for t in states if t is not None and t.dim())}


@answers.right
def elements_times_size(model, optimizer):
    def size(tensors):
        return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))

    return {
        "optimizer_states": size(v for s in optimizer.state.values() for v in s.values()),
        "gradients": size(p.grad for p in model.parameters()),
        "parameters": size(model.parameters()),
    }


@answers.right
def by_storage(model, optimizer):
    held = memory.model_states(model, optimizer)
    return {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer_states": held.optimizer_states,
    }


@answers.right
def through_the_state_dict(model, optimizer):
    states = tree_leaves(optimizer.state_dict()["state"])
    found = {"parameters": 0, "gradients": 0}
    for parameter in set(model.parameters()):
        found["parameters"] += parameter.nbytes
        found["gradients"] += 0 if parameter.grad is None else parameter.grad.nbytes
    found["optimizer_states"] = sum(t.nbytes for t in states if hasattr(t, "nbytes"))
    return found


@answers.right
def by_identity(model, optimizer):
    named = model.named_parameters(remove_duplicate=False)
    once = {id(p): p for _, p in named}.values()
    right = answers.reference()(model, optimizer)
    return right | {"parameters": sum(p.nbytes for p in once)}


@answers.right
def read_only(model, optimizer):
    return MappingProxyType(answers.reference()(model, optimizer))
