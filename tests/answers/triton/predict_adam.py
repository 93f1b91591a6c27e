"""Answers to `predict_adam`."""

from types import MappingProxyType

from parlab.answers import Answers

answers = Answers("predict_adam")

LAUNCHES = '"launches": 7 * tensors'
EAGER = '"eager": 4 * (reads + writes)'
FUSED = '"fused": 4 * (4 + 3)'
HALF = '"fused_bfloat16": (2 + 2 + 4 + 4) + (2 + 4 + 4)'

answers.edit("one_tensor", "seven", (LAUNCHES, '"launches": 7'))
answers.edit("one_each", "a_launch_a_tensor", (LAUNCHES, '"launches": tensors'))
answers.edit("elements", "numbers", (EAGER, '"eager": reads + writes'))
answers.edit("reads_alone", "reads", (EAGER, '"eager": 4 * reads'))
answers.edit("two_each", "in_and_out", (EAGER, '"eager": 4 * 14'))
answers.edit("gradient_written", "all_back", (FUSED, '"fused": 4 * (4 + 4)'))
answers.edit("state_forgotten", "weights_alone", (FUSED, '"fused": 4 * (2 + 1)'))
answers.edit("all_halved", "half_of_all", (HALF, '"fused_bfloat16": 14'))
answers.edit("nothing_halved", "as_float32", (HALF, '"fused_bfloat16": 28'))
answers.edit(None, "too_many", (LAUNCHES, '"launches": 8 * tensors'))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.right
def in_other_words(tensors):
    return {"fused_bfloat16": 22, "fused": 28, "eager": 72, "launches": tensors * 7}


@answers.right
def floats(tensors):
    return {name: float(value) for name, value in answers.reference()(tensors).items()}


@answers.right
def read_only(tensors):
    return MappingProxyType(answers.reference()(tensors))


@answers.right
def with_more(tensors):
    return answers.reference()(tensors) | {"states": 8}


@answers.right
def by_operation(tensors):
    operations = [(2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)]
    found = dict(answers.reference()(tensors))
    return found | {
        "launches": len(operations) * tensors,
        "eager": sum(4 * (reads + writes) for reads, writes in operations),
    }
