"""Answers to `layer_norm`."""

import torch
import triton
import triton.language as tl

from parlab_staff.answers import Answers

answers = Answers("layer_norm")
reference = answers.reference()
LayerNorm = reference.__globals__["LayerNorm"]
norm_kernel = reference.__globals__["norm_kernel"]

LOAD = "x = tl.load(x_pointer + row * columns + column, mask=mask, other=0.0).to(tl.float32)"
MEAN = "mean = tl.sum(x, axis=0) / columns"
DISTANCE = "distance = tl.where(mask, x - mean, 0.0)"
VARIANCE = "tl.sum(distance * distance, axis=0) / columns"
RSTD = f"rstd = 1 / tl.sqrt({VARIANCE} + eps)"
STORE_Y = "tl.store(y_pointer + row * columns + column, w * (distance * rstd) + b, mask=mask)"
ARGUMENTS = "x_pointer, w_pointer, b_pointer, y_pointer"
LAUNCH = "norm_kernel[(rows,)](x, weight, bias, y, mean, rstd, columns, eps, BLOCK=block)"
BLOCK = "block = triton.next_power_of_2(columns)"
Y = "y = torch.empty_like(x)"
SAVED = "ctx.save_for_backward(x, weight, mean, rstd)"

LOAD_X = "x = tl.load(x_pointer + places, mask=mask, other=0.0).to(tl.float32)"
LOAD_DY = "dy = tl.load(dy_pointer + places, mask=mask, other=0.0).to(tl.float32)"
LOOP = "for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):"
DELTA = "delta = w * dy"
DX = "rstd * (delta - mean - normal * product)"
STORE_DX = f"tl.store(dx_pointer + places, {DX}, mask=mask)"
DW = "dw += dy * normal"
DB = "db += dy"
OWN = "own = tl.program_id(0) * columns + column"
STORE_DW = "tl.store(dw_pointer + own, dw, mask=mask)"
STORE_DB = "tl.store(db_pointer + own, db, mask=mask)"
PROGRAMS = "programs = min(rows, 128)"
PARTS = "dw, db = torch.empty(2, programs, columns, device=x.device)"
ZEROS = "dw, db = torch.zeros(2, programs, columns, device=x.device)"
RETURN = "return dx, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype), None"
APPLY = "return LayerNorm.apply(x, weight, bias, eps)"
ADD = "tl.atomic_add({0}_pointer + column, {0}, mask=mask)"

# The forward pass
answers.edit("loads_outside", "no_mask", (LOAD, LOAD.replace("mask=mask, other=0.0", "")))
answers.edit("undefined_numbers", "no_other", (LOAD, LOAD.replace(", other=0.0", "")))
answers.edit("stores_outside", "store_unmasked", (STORE_Y, STORE_Y.replace(", mask=mask", "")))
answers.edit("padding_counted", "variance_of_block", (DISTANCE, "distance = x - mean"))
answers.edit(
    "mean_of_block",
    "divided_by_block",
    (MEAN, MEAN.replace("columns", "BLOCK")),
    (DISTANCE, "distance = x - mean"),
    (RSTD, RSTD.replace("columns", "BLOCK")),
)
answers.edit("unbiased", "one_less", (RSTD, RSTD.replace("columns", "(columns - 1)")))
answers.edit("eps_outside", "eps_added_later", (RSTD, f"rstd = 1 / (tl.sqrt({VARIANCE}) + eps)"))
answers.edit(None, "eps_ignored", (RSTD, RSTD.replace(" + eps", " + 1e-5")))
answers.edit(None, "mean_not_subtracted", (STORE_Y, STORE_Y.replace("distance", "x")))
answers.edit(
    None,
    "mean_of_squares",
    (VARIANCE, "(tl.sum(x * x, axis=0) / columns - mean * mean)"),
    says="numbers around 200",
)
answers.edit("not_by_kernel", "rows_of_1024", (BLOCK, "block = 1024"))
answers.edit(None, "sums_of_16_bits", (LOAD, LOAD.replace(".to(tl.float32)", "")))
answers.edit("copied", "in_float32", (LAUNCH, LAUNCH.replace("](x,", "](x.float(),")))
answers.edit("wrong_dtype", "float32_always", (Y, "y = torch.empty(x.shape)"))
answers.edit("argument_changed", "in_place", (Y, "y = x.detach()"))
answers.edit("several_launches", "twice", (LAUNCH, f"{LAUNCH}\n        {LAUNCH}"))
answers.edit(
    "normal_stored",
    "stored_for_later",
    (ARGUMENTS, f"normal_pointer, {ARGUMENTS}"),
    (LAUNCH, LAUNCH.replace("](x", "](torch.empty_like(x), x")),
    (STORE_Y, f"{STORE_Y}\n    {STORE_Y.replace('y_pointer', 'normal_pointer')}"),
)
answers.edit("returns_none", "no_return", (APPLY, "LayerNorm.apply(x, weight, bias, eps)"))

# The backward pass
answers.edit("raises", "no_gradient_for_eps", (RETURN, RETURN.replace(", None", "")))
answers.edit("raises", "wrong_axis", (RETURN, RETURN.replace("dw.sum(0)", "dw.sum(1)")))
answers.edit("statistics_constant", "constants", (DX, "rstd * delta"))
answers.edit(None, "mean_constant", (DX, DX.replace(" - mean", "")))
answers.edit(None, "deviation_constant", (DX, DX.replace(" - normal * product", "")))
answers.edit(None, "not_divided_by_sigma", (DX, DX.replace("rstd * ", "")))
answers.edit("weight_left_out", "without_weight", (DELTA, "delta = dy"))
answers.edit("normal_left_out", "sum_of_dy", (DW, "dw += dy"))
answers.edit("sums_replaced", "last_row_only", (DW, "dw = dy * normal"), (DB, "db = dy"))
answers.edit(
    "not_a_number", "first_rows_only", (LOOP, "for row in range(tl.program_id(0), 128, 128):")
)
answers.edit("races", "one_row_for_all", (OWN, "own = column"), (PARTS, ZEROS))
answers.edit(
    "races",
    "atomic_additions",
    (STORE_DW, ADD.format("dw")),
    (STORE_DB, ADD.format("db")),
    (PARTS, ZEROS),
)
answers.edit("too_many_programs", "program_per_row", (PROGRAMS, "programs = rows"))
answers.edit("gradient_strides", "as_in_memory", ("dy.contiguous()", "dy"))
answers.edit(None, "loaded_again", (DX, f"{DX} + 0 * {LOAD_X[4:]}"), says="load each number once")
answers.edit(
    None,
    "sums_by_torch",
    (STORE_DW, "pass"),
    (STORE_DB, "pass"),
    (
        RETURN,
        "normal = (x.float() - mean[:, None]) * rstd[:, None]\n        "
        "return dx, (dy * normal).sum(0), dy.sum(0), None",
    ),
    says="must also add up",
)
answers.edit("not_by_kernel", "dx_by_torch", (RETURN, RETURN.replace("dx,", "dx.clone(),")))


@answers.wrong("no_launch")
def torch_alone(x, weight, bias, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, eps)


@answers.wrong("raises", says="does not require grad")
def no_function(x, weight, bias, eps=1e-5):
    y, (mean, rstd) = torch.empty_like(x), torch.empty(2, len(x))
    block = triton.next_power_of_2(x.shape[1])
    norm_kernel[(len(x),)](x, weight, bias, y, mean, rstd, x.shape[1], eps, BLOCK=block)
    return y


answers.right_edit("fewer_programs", (PROGRAMS, "programs = min(rows, 7)"))
answers.right_edit("more_programs_than_rows", (PROGRAMS, "programs = 128"))
answers.right_edit("twice_the_block", (BLOCK, "block = 2 * triton.next_power_of_2(columns)"))
answers.right_edit("by_rsqrt", (RSTD, f"rstd = tl.rsqrt({VARIANCE} + eps)"))
answers.right_edit("summed_by_autograd", (RETURN, "return dx, dw, db, None"))


@triton.jit
def again(x, dy, w, dx, dw, db, rows, columns, s0, s1, eps, PER: tl.constexpr, B: tl.constexpr):
    """Rows that follow each other, mean and deviation computed again, and dy with its strides."""
    column = tl.arange(0, B)
    inside = column < columns
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    sum_w, sum_b = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    for row in range(tl.program_id(0) * PER, tl.minimum(tl.program_id(0) * PER + PER, rows)):
        place = row * columns + column
        number = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + row * s0 + column * s1, mask=inside, other=0.0).to(tl.float32)
        number = tl.where(inside, number - tl.sum(number, 0) / columns, 0.0)
        rstd = tl.rsqrt(tl.sum(number * number, 0) / columns + eps)
        number *= rstd
        sum_w += grad * number
        sum_b += grad
        grad *= weight
        slope = tl.sum(grad * number, 0) / columns
        result = (grad - tl.sum(grad, 0) / columns - slope * number) * rstd
        tl.store(dx + place, result, mask=inside)
    tl.store(dw + tl.program_id(0) * columns + column, sum_w, mask=inside)
    tl.store(db + tl.program_id(0) * columns + column, sum_b, mask=inside)


class Recomputed(LayerNorm):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y = LayerNorm.forward(ctx, x, weight, bias, eps)
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows, columns = x.shape
        per = triton.cdiv(rows, 100)
        dx, programs = torch.empty_like(x), triton.cdiv(rows, per)
        dw, db = (torch.empty(programs, columns, device=x.device) for _ in range(2))
        block = triton.next_power_of_2(columns)
        again[(programs,)](
            *(x, dy, weight, dx, dw, db, rows, columns, *dy.stride(), ctx.eps), PER=per, B=block
        )
        return dx, dw.sum(0), db.sum(0), None


@answers.right
def computed_again(x, weight, bias, eps=1e-5):
    return Recomputed.apply(x, weight, bias, eps)


@triton.jit
def four_rows(x, w, b, y, mean, rstd, rows, columns, eps, B: tl.constexpr):
    """A block of four rows."""
    row = (tl.program_id(0) * 4 + tl.arange(0, 4))[:, None]
    column = tl.arange(0, B)[None, :]
    inside = (row < rows) & (column < columns)
    number = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    average = tl.sum(number, 1)[:, None] / columns
    number = tl.where(inside, number - average, 0.0)
    scale = tl.rsqrt(tl.sum(number * number, 1)[:, None] / columns + eps)
    weight = tl.load(w + column, mask=column < columns, other=0.0).to(tl.float32)
    bias = tl.load(b + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, number * scale * weight + bias, mask=inside)
    tl.store(mean + row, average, mask=row < rows)
    tl.store(rstd + row, scale, mask=row < rows)


class Blocks(LayerNorm):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        rows, columns = x.shape
        y, mean, rstd = torch.empty_like(x), x.new_empty(rows).float(), x.new_empty(rows).float()
        grid, block = (triton.cdiv(rows, 4),), triton.next_power_of_2(columns)
        four_rows[grid](x, weight, bias, y, mean, rstd, rows, columns, eps, B=block)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y


@answers.right
def rows_in_blocks(x, weight, bias, eps=1e-5):
    return Blocks.apply(x, weight, bias, eps)
