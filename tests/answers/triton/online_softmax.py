"""Answers to `online_softmax`."""

import triton
import triton.language as tl

from parlab_staff.answers import Answers

answers = Answers("online_softmax")
softmax = answers.reference("softmax")

LOAD = 'tl.load(x_pointer + column, mask=column < columns, other=-float("inf")).to(tl.float32)'
LARGER = "larger = tl.maximum(highest, tl.max(x, axis=0))"
SHIFT = 'shift = tl.where(larger > -float("inf"), larger, 0.0)'
OLD = "total * tl.exp(highest - shift)"
AGAIN = 'x = tl.load(x_pointer + column, mask=mask, other=-float("inf")).to(tl.float32)'
STORE = "tl.store(out_pointer + column, tl.exp(x - highest) / total, mask=mask)"
MASK = "mask = column < columns"
OUT = "out = torch.empty_like(x, memory_format=torch.contiguous_format)"
LAUNCH = "online_softmax_kernel[grid](x, out, *strides, x.shape[1], BLOCK=block)"
RETURN = "return out"
WHOLE = LAUNCH.replace("BLOCK=block", "BLOCK=triton.next_power_of_2(x.shape[1])")

answers.edit("outside", "no_mask", (AGAIN, "x = tl.load(x_pointer + column).to(tl.float32)"))
answers.edit("sum_kept", "sum_not_corrected", (OLD, "total"))
answers.edit("block_of_infinities", "infinities_subtracted", (SHIFT, "shift = larger"))
answers.edit("no_max", "powers_at_once", (LARGER, "larger = tl.maximum(highest, 0.0)"))
answers.edit("undefined_numbers", "no_other", (LOAD, LOAD.replace(', other=-float("inf")', "")))
answers.edit(None, "other_zero", (LOAD, LOAD.replace('-float("inf")', "0.0")))
answers.edit("block_too_large", "whole_row", (LAUNCH, WHOLE))
answers.edit("not_by_kernel", "torch_in_the_end", (RETURN, "return x.softmax(1)"))
answers.edit("argument_changed", "in_place", (OUT, "out = x"))
answers.edit(
    None, "contiguous_first", (OUT, "x = x.contiguous()\n    " + OUT), says="does not load"
)
answers.edit("wrong_dtype", "float32_always", (OUT, "out = torch.empty(x.shape)"))
answers.edit(None, "halves", (STORE, STORE.replace("tl.exp(x", "tl.exp(x.to(tl.bfloat16)")))
answers.edit(None, "three_passes", (MASK, f"{MASK}\n        {AGAIN}"), says="avoid needless loads")
answers.edit(None, "program_too_many", ("grid, strides = (len(x),)", "grid, strides = (len(x), 2)"))


answers.right_edit(
    "by_logarithm", (STORE, STORE.replace("highest) / total", "highest - tl.log(total))"))
)
answers.right_edit(
    "sum_before_maximum",
    (LARGER, f"{LARGER}\n        old = highest"),
    (OLD, "total * tl.exp(old - shift)"),
)
answers.right_edit(
    "smaller_blocks", (LAUNCH, LAUNCH.replace("BLOCK=block", "BLOCK=max(block // 2, 1)"))
)
answers.right_edit("lowest_float32", (SHIFT, "shift = tl.maximum(larger, -3.0e38)"))


@triton.jit
def from_the_end(x, out, stride, columns, BLOCK: tl.constexpr):
    """The second pass goes backwards, so that the cache still has what it reads first."""
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    highest, total = -float("inf"), 0.0
    steps = tl.cdiv(columns, BLOCK)
    for step in range(0, steps):
        column = step * BLOCK + place
        number = tl.load(x + row * stride + column, mask=column < columns, other=-float("inf"))
        larger = tl.maximum(highest, tl.max(number.to(tl.float32), axis=0))
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(highest - shift) + tl.sum(tl.exp(number.to(tl.float32) - shift), 0)
        highest = larger
    for step in range(0, steps):
        column = (steps - 1 - step) * BLOCK + place
        number = tl.load(x + row * stride + column, mask=column < columns, other=0.0)
        powers = tl.exp(number.to(tl.float32) - highest)
        tl.store(out + row * columns + column, powers / total, mask=column < columns)


@answers.right
def backwards(x, block=1024):
    out = x.new_empty(x.shape)
    from_the_end[(len(x),)](x, out, x.stride(0), x.shape[1], BLOCK=block)
    return out


answers.edit(
    None,
    "one_result_for_all_calls",
    (OUT, f"{OUT}\n    out = online_softmax.__dict__.setdefault((x.shape, x.dtype), out)"),
    says="changes the result of the first one",
)
