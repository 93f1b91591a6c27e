"""Answers to `predict_fusion`."""

from types import MappingProxyType

from parlab_staff.answers import Answers

answers = Answers("predict_fusion")
reference = answers.reference()

WRITES = "writes = 3 * matrix + 2 * column"
SUM = '"softmax": reads + writes'
FUSED = '"softmax_fused": 2 * matrix'
INTENSITY = '"intensity": 5 * rows * columns / (2 * matrix)'
MATRIX = "matrix, column = rows * columns * size, rows * size"
ADAM = '"adam": 4 * (11 + 7)'
ADAM_FUSED = '"adam_fused": 4 * (4 + 3)'

answers.edit("elements", "numbers", (MATRIX, "matrix, column = rows * columns, rows"))
answers.edit("reads_alone", "reads", (SUM, '"softmax": reads'))
answers.edit("each_once", "two_each", (SUM, '"softmax": 10 * matrix'))
answers.edit(None, "matrices", (SUM, '"softmax": 8 * matrix'))
answers.edit("reads_alone", "fused_reads", (FUSED, '"softmax_fused": matrix'))
answers.edit(None, "read", (INTENSITY, '"intensity": 5 * rows * columns / matrix'))
answers.edit(None, "one_column_less", (WRITES, "writes = 3 * matrix + 1 * column"))
answers.edit("elements", "numbers_of_adam", (ADAM, '"adam": 11 + 7'))
answers.edit("reads_alone", "reads_of_adam", (ADAM, '"adam": 4 * 11'))
answers.edit("each_once", "in_and_out", (ADAM, '"adam": 4 * 14'))
answers.edit("gradient_written", "all_back", (ADAM_FUSED, '"adam_fused": 4 * (4 + 4)'))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))

answers.right_edit("in_other_words", (INTENSITY, '"intensity": 2.5 / size'))
answers.right_edit("with_more", (FUSED, FUSED + ', "ratio": 4'))
answers.right_edit("a_little_more", (SUM, '"softmax": 1.004 * (reads + writes)'))


@answers.right
def rounded(rows, columns, size):
    return {name: float(round(x, 3)) for name, x in reference(rows, columns, size).items()}


@answers.right
def read_only(rows, columns, size):
    return MappingProxyType(reference(rows, columns, size))
