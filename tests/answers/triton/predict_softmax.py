"""Answers to `predict_softmax`."""

from types import MappingProxyType

from parlab_staff.answers import Answers

answers = Answers("predict_softmax")
reference = answers.reference()

WRITES = "writes = 3 * matrix + 2 * column"
SUM = '"eager": reads + writes'
FUSED = '"fused": 2 * matrix'
INTENSITY = '"intensity": 5 * rows * columns / (2 * matrix)'
PROGRAMS = "triton.cdiv(rows * columns, 1024)"
MATRIX = "matrix, column = rows * columns * size, rows * size"

answers.edit("elements", "numbers", (MATRIX, "matrix, column = rows * columns, rows"))
answers.edit("reads_alone", "reads", (SUM, '"eager": reads'))
answers.edit("each_once", "two_each", (SUM, '"eager": 10 * matrix'))
answers.edit("columns_left_out", "matrices", (SUM, '"eager": 8 * matrix'))
answers.edit("reads_alone", "fused_reads", (FUSED, '"fused": matrix'))
answers.edit("rounded_down", "floor", (PROGRAMS, "rows * columns // 1024"))
answers.edit(None, "program_per_row", (PROGRAMS, "rows"))
answers.edit("for_each_number", "five", (INTENSITY, '"intensity": 5'))
answers.edit("one_way", "read", (INTENSITY, '"intensity": 5 * rows * columns / matrix'))
answers.edit(None, "one_operation", (INTENSITY, '"intensity": 1 / (2 * size)'))
answers.edit(None, "one_column_less", (WRITES, "writes = 3 * matrix + 1 * column"))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))

answers.right_edit("in_other_words", (INTENSITY, '"intensity": 2.5 / size'))
answers.right_edit("with_more", (FUSED, FUSED + ', "ratio": 4'))
answers.right_edit("a_little_more", (SUM, '"eager": 1.004 * (reads + writes)'))


@answers.right
def rounded(rows, columns, size):
    return {name: float(round(x, 3)) for name, x in reference(rows, columns, size).items()}


@answers.right
def read_only(rows, columns, size):
    return MappingProxyType(reference(rows, columns, size))
