"""Answers to `predict_adam`."""

from types import MappingProxyType

from parlab_staff.answers import Answers

answers = Answers("predict_adam")
reference = answers.reference()

LAUNCHES = '"launches": 7 * tensors'
EAGER = '"eager": 4 * (reads + writes)'
FUSED = '"fused": 4 * (4 + 3)'
HALF = '"fused_bfloat16": (2 + 2 + 4 + 4) + (2 + 4 + 4)'

answers.edit("one_tensor", "seven", (LAUNCHES, '"launches": 7'))
answers.edit(None, "a_launch_a_tensor", (LAUNCHES, '"launches": tensors'))
answers.edit("elements", "numbers", (EAGER, '"eager": reads + writes'))
answers.edit("reads_alone", "reads", (EAGER, '"eager": 4 * reads'))
answers.edit("two_each", "in_and_out", (EAGER, '"eager": 4 * 14'))
answers.edit("gradient_written", "all_back", (FUSED, '"fused": 4 * (4 + 4)'))
answers.edit(None, "weights_alone", (FUSED, '"fused": 4 * (2 + 1)'))
answers.edit("all_halved", "half_of_all", (HALF, '"fused_bfloat16": 14'))
answers.edit("nothing_halved", "as_float32", (HALF, '"fused_bfloat16": 28'))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))

answers.right_edit("another_order", (LAUNCHES + ",", ""), (HALF, f"{HALF}, {LAUNCHES}"))
answers.right_edit("in_numbers", (EAGER, '"eager": 72'), (FUSED, '"fused": 28'))
answers.right_edit("with_more", (FUSED, FUSED + ', "states": 8'))


@answers.right
def floats(tensors):
    return {name: float(value) for name, value in reference(tensors).items()}


@answers.right
def read_only(tensors):
    return MappingProxyType(reference(tensors))
