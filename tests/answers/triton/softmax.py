"""Answers to `softmax`."""

import torch
import triton
import triton.language as tl

from parlab_staff.answers import Answers

answers = Answers("softmax")

LOAD = 'tl.load(x_pointer + row * x_stride + column, mask=mask, other=-float("inf"))'
POWERS = "powers = tl.exp(x - tl.max(x, axis=0))"
SHARES = "powers / tl.sum(powers, axis=0)"
OUT = "out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)"
BLOCK = "block = triton.next_power_of_2(columns)"
LAUNCH = "softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=block)"
RETURN = "return out"
TWICE = POWERS.replace("tl.max(x, axis=0)", f"tl.max({LOAD}.to(tl.float32), axis=0)")

answers.edit("outside", "no_mask", (LOAD, "tl.load(x_pointer + row * x_stride + column)"))
answers.edit("row_stride", "rows_adjacent", (LAUNCH, LAUNCH.replace("x.stride(0)", "columns")))
answers.edit("no_max", "powers_at_once", (POWERS, "powers = tl.exp(x)"))
answers.edit("padding_counted", "other_zero", (LOAD, LOAD.replace('-float("inf")', "0.0")))
answers.edit("padding_counted", "minus_a_billion", (LOAD, LOAD.replace('-float("inf")', "-1e9")))
answers.edit("undefined_numbers", "no_other", (LOAD, LOAD.replace(', other=-float("inf")', "")))
answers.edit(None, "halves", (POWERS, POWERS + ".to(out_pointer.dtype.element_ty)"))
answers.edit(None, "two_passes", (POWERS, TWICE), says="avoid needless loads")
PARTS = "for x, part in zip(x.split(64), out.split(64), strict=True):\n        "
OF_PART = LAUNCH.replace("[(rows,)](x, out", "[(len(x),)](x, part")
answers.edit("several_launches", "in_parts", (LAUNCH, PARTS + OF_PART))
answers.edit("not_by_kernel", "torch_in_the_end", (RETURN, "return x.softmax(1)"))
answers.edit("argument_changed", "in_place", (OUT, "out = x"))
answers.edit("wrong_type", "a_list", (RETURN, "return out.tolist()"))
answers.edit("wrong_shape", "flat", (RETURN, "return out.flatten()"))
answers.edit("wrong_dtype", "float32_always", (OUT, OUT.replace("dtype=x.dtype, ", "")))
answers.edit(None, "numbers_cut_off", (POWERS, "x = tl.maximum(x, -60000.0)\n    " + POWERS))
answers.edit(None, "contiguous_first", (OUT, "x = x.contiguous()\n    " + OUT))

LOGARITHM = "tl.exp(x - (tl.max(x, axis=0) + tl.log(tl.sum(powers, axis=0))))"
answers.right_edit("by_logarithm", (SHARES, LOGARITHM))
answers.right_edit("larger_block", (BLOCK, "block = 2 * triton.next_power_of_2(columns)"))
answers.right_edit("softmax_of_triton", (POWERS, "powers = tl.softmax(x)"), (SHARES, "powers"))


@triton.jit
def persistent(x, out, x_stride, rows, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        numbers = tl.load(x + row * x_stride + column, mask=mask, other=-float("inf"))
        numbers = numbers.to(tl.float32)
        numbers -= tl.max(numbers, axis=0)
        tl.store(out + row * columns + column, tl.exp(numbers) / tl.sum(tl.exp(numbers), 0), mask)


@answers.right
def two_programs(x):
    out = x.new_empty(x.shape)
    block = triton.next_power_of_2(x.shape[1])
    persistent[(2,)](x, out, x.stride(0), len(x), x.shape[1], block)
    return out


@triton.jit
def several_rows(x, out, x_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    numbers = tl.load(x + row * x_stride + column, mask=mask, other=-float("inf")).to(tl.float32)
    numbers = tl.where(row < rows, numbers, 0.0)
    powers = tl.exp(numbers - tl.max(numbers, axis=1)[:, None])
    tl.store(out + row * columns + column, powers / tl.sum(powers, axis=1)[:, None], mask=mask)


@answers.right
def blocks_of_rows(x):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    grid, block = (triton.cdiv(len(x), 4),), triton.next_power_of_2(x.shape[1])
    several_rows[grid](x, out, x.stride(0), len(x), x.shape[1], ROWS=4, BLOCK=block)
    return out


answers.edit(
    None,
    "one_result_for_all_calls",
    (OUT, f"key = x.shape, x.dtype\n    {OUT}\n    out = softmax.__dict__.setdefault(key, out)"),
    says="changes the result of the first one",
)
