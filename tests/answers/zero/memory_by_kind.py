"""Answers to `memory_by_kind`."""

from dataclasses import asdict
from types import MappingProxyType

import torch
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab_staff.answers import Answers

answers = Answers("memory_by_kind")

PARAMETERS = '"parameters": sum(p.nbytes for p in parameters)'
GRADIENTS = '"gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None)'
STATES = '"optimizer_states": sum(t.nbytes for t in states if isinstance(t, torch.Tensor))'
LIST = "parameters = list(model.parameters())"
TWICE = "parameters = [p for _, p in model.named_parameters(remove_duplicate=False)]"
ASSUMED = '"optimizer_states": 2 * sum(p.nbytes for p in parameters if p.requires_grad)'


def replaced(text, old, new):
    return text, text.replace(old, new)


for mistake, name, edit in (
    ("tied_twice", "under_both_names", (LIST, TWICE)),
    ("frozen_left_out", "trainable_only", replaced(PARAMETERS, "s)", "s if p.requires_grad)")),
    ("frozen_left_out", "frozen_since", replaced(GRADIENTS, "None)", "None and p.requires_grad)")),
    (
        "gradients_assumed",
        "a_gradient_each",
        (GRADIENTS, PARAMETERS.replace('"parameters"', '"gradients"')),
    ),
    (None, "first_gradient_left_out", replaced(GRADIENTS, "parameters", "parameters[1:]")),
    (None, "last_gradient_left_out", replaced(GRADIENTS, "parameters", "parameters[:-1]")),
    ("numbers", "numel", replaced(PARAMETERS, "nbytes", "numel()")),
    (
        "buffers_count",
        "buffers_too",
        replaced(PARAMETERS, "in parameters", "in [*parameters, *model.buffers()]"),
    ),
    (None, "float32_assumed", replaced(PARAMETERS, "p.nbytes", "4 * p.numel()")),
    ("states_assumed", "two_moments_each", (STATES, ASSUMED)),
    ("raises", "none_counted", replaced(GRADIENTS, " if p.grad is not None", "")),
    ("raises", "all_are_tensors", replaced(STATES, " if isinstance(t, torch.Tensor)", "")),
    (None, "no_counters", replaced(STATES, "Tensor)", "Tensor) and t.dim()")),
):
    answers.edit(mistake, name, edit)


@answers.right
def elements_times_size(model, optimizer):
    def size(tensors):
        return sum(t.numel() * t.element_size() for t in tensors if hasattr(t, "element_size"))

    return {
        "optimizer_states": size(v for s in optimizer.state.values() for v in s.values()),
        "gradients": size(p.grad for p in model.parameters()),
        "parameters": size(model.parameters()),
    }


@answers.right
def by_storage(model, optimizer):
    return asdict(memory.model_states(model, optimizer))


@answers.right
def through_the_state_dict(model, optimizer):
    states = tree_leaves(optimizer.state_dict()["state"])
    found = {"parameters": 0, "gradients": 0}
    for parameter in set(model.parameters()):
        found["parameters"] += parameter.nbytes
        found["gradients"] += 0 if parameter.grad is None else parameter.grad.nbytes
    return found | {"optimizer_states": sum(t.nbytes for t in states if hasattr(t, "nbytes"))}


@answers.right
def by_identity(model, optimizer):
    once = {id(p): p for _, p in model.named_parameters(remove_duplicate=False)}.values()
    return answers.reference()(model, optimizer) | {"parameters": sum(p.nbytes for p in once)}


@answers.right
def read_only(model, optimizer):
    return MappingProxyType(answers.reference()(model, optimizer))


@answers.wrong(None, says="optimizer_states")
def states_of_the_model(model, optimizer):
    found = answers.reference()(model, optimizer)
    states = [s for p in model.parameters() for s in optimizer.state.get(p, {}).values()]
    return found | {"optimizer_states": sum(getattr(s, "nbytes", 0) for s in states)}


@answers.wrong(None, says="optimizer_states")
def states_like_parameters(model, optimizer):
    states = 0
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                like = parameter if value.shape == parameter.shape else value
                states += value.numel() * like.element_size()
    return answers.reference()(model, optimizer) | {"optimizer_states": states}
