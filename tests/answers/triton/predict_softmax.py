"""Answers to `predict_softmax`."""

from types import MappingProxyType

from parlab.answers import Answers

answers = Answers("predict_softmax")

READS = "reads = 5 * matrix + 2 * column"
WRITES = "writes = 3 * matrix + 2 * column"
SUM = '"eager": reads + writes'
FUSED = '"fused": 2 * matrix'
INTENSITY = '"intensity": 5 * rows * columns / (2 * matrix)'
PROGRAMS = "triton.cdiv(rows * columns, 1024)"
MATRIX = "matrix, column = rows * columns * size, rows * size"

answers.edit("elements", "numbers", (MATRIX, "matrix, column = rows * columns, rows"))
answers.edit("reads_alone", "reads", (SUM, '"eager": reads'))
answers.edit("writes_alone", "writes", (SUM, '"eager": writes'))
answers.edit("each_once", "two_each", (SUM, '"eager": 10 * matrix'))
answers.edit("columns_left_out", "matrices", (SUM, '"eager": 8 * matrix'))
answers.edit("not_fused", "as_eager", (FUSED, '"fused": reads + writes'))
answers.edit("once", "one_way", (FUSED, '"fused": matrix'))
answers.edit("rounded_down", "floor", (PROGRAMS, "rows * columns // 1024"))
answers.edit("program_per_row", "rows", (PROGRAMS, "rows"))
answers.edit("for_each_number", "five", (INTENSITY, '"intensity": 5'))
answers.edit("one_way", "read", (INTENSITY, '"intensity": 5 * rows * columns / matrix'))
answers.edit(
    "of_eager", "eager_bytes", (INTENSITY, '"intensity": 5 * rows * columns / (reads + writes)')
)
answers.edit(
    "upside_down", "bytes_for_each", (INTENSITY, '"intensity": 2 * matrix / (5 * rows * columns)')
)
answers.edit(None, "one_operation", (INTENSITY, '"intensity": 1 / (2 * size)'))
answers.edit(None, "one_column_less", (WRITES, "writes = 3 * matrix + 1 * column"))
answers.edit(None, "programs_for_columns", (PROGRAMS, "triton.cdiv(columns, 1024)"))
answers.edit(None, "twice", (FUSED, '"fused": 4 * matrix'))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.right
def by_operation(rows, columns, size):
    matrix, column = rows * columns, rows
    moved = [matrix + column, 2 * matrix + column, 2 * matrix, matrix + column, 2 * matrix + column]
    programs = (rows * columns + 1023) // 1024
    bytes_moved = {"fused": size * 2 * matrix, "eager": size * sum(moved)}
    return bytes_moved | {"programs": programs, "intensity": 2.5 / size}


@answers.right
def rounded(rows, columns, size):
    return {k: float(round(v, 3)) for k, v in answers.reference()(rows, columns, size).items()}


@answers.right
def read_only(rows, columns, size):
    return MappingProxyType(answers.reference()(rows, columns, size))


@answers.right
def with_more(rows, columns, size):
    return answers.reference()(rows, columns, size) | {"ratio": 4}


@answers.right
def a_little_more(rows, columns, size):
    found = dict(answers.reference()(rows, columns, size))
    found["eager"] *= 1.004
    return found
