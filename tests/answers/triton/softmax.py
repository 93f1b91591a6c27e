"""Answers to `softmax`."""

import torch
import triton
import triton.language as tl

from parlab.answers import Answers

answers = Answers("softmax")

LOAD = 'tl.load(x_pointer + row * x_stride + column, mask=mask, other=-float("inf"))'
POWERS = "powers = tl.exp(x - tl.max(x, axis=0))"
STORE = (
    "tl.store(out_pointer + row * out_stride + column, powers / tl.sum(powers, axis=0), mask=mask)"
)
OUT = "out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)"
LAUNCH = "softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=block)"
RETURN = "return out"
ROW = LAUNCH.replace("(rows,)", "(1,)").replace("(x, out", "(x[i:], out[i:]")
ROWS = "for i in range(rows):\n        " + ROW

answers.edit("loads_outside", "no_mask", (LOAD, "tl.load(x_pointer + row * x_stride + column)"))
answers.edit("stores_outside", "store_unmasked", (STORE, STORE.replace(", mask=mask", "")))
answers.edit("row_stride", "rows_adjacent", (LAUNCH, LAUNCH.replace("x.stride(0)", "columns")))
answers.edit("no_max", "powers_at_once", (POWERS, "powers = tl.exp(x)"))
answers.edit("padding_counted", "other_zero", (LOAD, LOAD.replace('-float("inf")', "0.0")))
answers.edit("undefined_numbers", "no_other", (LOAD, LOAD.replace(', other=-float("inf")', "")))
answers.edit("not_divided", "powers_alone", (STORE, STORE.replace(" / tl.sum(powers, axis=0)", "")))
answers.edit("half_precision", "halves", (POWERS, POWERS + ".to(out_pointer.dtype.element_ty)"))
answers.edit(
    "loaded_again",
    "three_passes",
    (POWERS, POWERS.replace("tl.max(x, axis=0)", f"tl.max({LOAD}.to(tl.float32), axis=0)")),
)
answers.edit("no_launch", "torch_alone", (LAUNCH, "out = x.softmax(1)"))
answers.edit("several_launches", "row_by_row", (LAUNCH, ROWS))
answers.edit("not_by_kernel", "torch_in_the_end", (RETURN, "return x.softmax(1)"))
answers.edit("argument_changed", "in_place", (OUT, "out = x"))
answers.edit("wrong_dtype", "float32_always", (OUT, OUT.replace("dtype=x.dtype, ", "")))
answers.edit(None, "of_columns", (RETURN, "return out.copy_(x.float().softmax(0).to(x.dtype))"))
answers.edit(
    "finite_padding", "other_large_and_negative", (LOAD, LOAD.replace('-float("inf")', "-1e4"))
)
answers.edit(None, "numbers_cut_off", (POWERS, "x = tl.maximum(x, -60000.0)\n    " + POWERS))
answers.edit("copied", "contiguous_first", (OUT, "x = x.contiguous()\n    " + OUT))
answers.edit("returns_none", "no_return", (RETURN, "pass"))


@triton.jit
def several_rows(x, out, x_stride, out_stride, rows, columns, ROWS: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, B)[None, :]
    there = (row < rows) & (column < columns)
    numbers = tl.load(x + row * x_stride + column, mask=there, other=-1e30).to(tl.float32)
    numbers = tl.where(there, numbers, -float("inf"))
    highest = tl.max(tl.where(row < rows, numbers, 0.0), axis=1)
    powers = tl.exp(numbers - highest[:, None])
    total = tl.sum(powers, axis=1)
    total = tl.where(total > 0, total, 1.0)
    tl.store(out + row * out_stride + column, powers / total[:, None], mask=there)


@answers.right
def blocks_of_rows(x):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    several_rows[(triton.cdiv(len(x), 4),)](
        x, out, x.stride(0), out.stride(0), len(x), x.shape[1], ROWS=4, B=block
    )
    return out


@triton.jit
def persistent(x, out, x_stride, rows, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    there = column < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        numbers = tl.load(x + row * x_stride + column, mask=there, other=-float("inf"))
        numbers = numbers.to(tl.float32)
        numbers -= tl.max(numbers, axis=0)
        tl.store(out + row * columns + column, tl.exp(numbers) / tl.sum(tl.exp(numbers), 0), there)


@answers.right
def two_programs(x):
    out = x.new_empty(x.shape)
    block = triton.next_power_of_2(x.shape[1])
    persistent[(2,)](x, out, x.stride(0), len(x), x.shape[1], block)
    return out


@triton.jit
def by_logarithm(x, out, x_stride, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    start = x + tl.program_id(0) * x_stride
    numbers = tl.load(start + column, mask=column < columns, other=float("-inf")).to(tl.float32)
    highest = tl.max(numbers, axis=0)
    total = highest + tl.log(tl.sum(tl.exp(numbers - highest), axis=0))
    tl.store(
        out + tl.program_id(0) * columns + column, tl.exp(numbers - total), mask=column < columns
    )


@answers.right
def log_sum_exp(x):
    rows, columns = x.shape
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    by_logarithm[(rows,)](x, out, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return out


@answers.right
def larger_block(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    by_logarithm[(len(x), 1, 1)](x, out, x.stride()[0], x.size(1), BLOCK=256)
    return out


@triton.jit
def with_library(x, out, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    numbers = tl.load(x + row * x_stride + column, mask=column < columns, other=-float("inf"))
    result = tl.softmax(numbers.to(tl.float32))
    tl.store(out + row * columns + column, result, mask=column < columns)


@answers.right
def softmax_of_triton(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    with_library[(x.shape[0],)](x, out, x.stride(0), x.shape[1], BLOCK=block)
    return out
