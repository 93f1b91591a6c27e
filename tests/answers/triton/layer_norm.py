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
DISTANCE = "distance = tl.where(mask, x - mean, 0.0)"
VARIANCE = "tl.sum(distance * distance, axis=0) / columns"
RSTD = f"rstd = 1 / tl.sqrt({VARIANCE} + eps)"
STORE_Y = "tl.store(y_pointer + row * columns + column, w * (distance * rstd) + b, mask=mask)"
ARGUMENTS = "x_pointer, w_pointer, b_pointer, y_pointer"
LAUNCH = "norm_kernel[(rows,)](x, weight, bias, y, mean, rstd, columns, eps, BLOCK=block)"
BLOCK = "block = triton.next_power_of_2(columns)"
Y = "y = torch.empty_like(x)"

LOAD_X = "x = tl.load(x_pointer + places, mask=mask, other=0.0).to(tl.float32)"
DX = "rstd * (delta - mean - normal * product)"
OWN = "own = tl.program_id(0) * columns + column"
STORE_DW = "tl.store(dw_pointer + own, dw, mask=mask)"
STORE_DB = "tl.store(db_pointer + own, db, mask=mask)"
PROGRAMS = "programs = min(rows, 128)"
PARTS = "dw, db = torch.empty(2, programs, columns, device=x.device)"
ZEROS = "dw, db = torch.zeros(2, programs, columns, device=x.device)"
RETURN = "return dx, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype), None"
ADD = "tl.atomic_add({0}_pointer + column, {0}, mask=mask)"

# The forward pass
answers.edit("outside", "no_mask", (LOAD, LOAD.replace("mask=mask, other=0.0", "")))
answers.edit("undefined_numbers", "no_other", (LOAD, LOAD.replace(", other=0.0", "")))
answers.edit("padding_counted", "variance_of_block", (DISTANCE, "distance = x - mean"))
answers.edit(None, "eps_ignored", (RSTD, RSTD.replace(" + eps", " + 1e-5")))
answers.edit(
    None,
    "mean_of_squares",
    (VARIANCE, "(tl.sum(x * x, axis=0) / columns - mean * mean)"),
    says="numbers around 200",
)
answers.edit(None, "sums_of_16_bits", (LOAD, LOAD.replace(".to(tl.float32)", "")))
answers.edit(None, "in_float32", (LAUNCH, LAUNCH.replace("](x,", "](x.float(),")))
answers.edit("wrong_dtype", "float32_always", (Y, "y = torch.empty(x.shape)"))
answers.edit("argument_changed", "in_place", (Y, "y = x.detach()"))
answers.edit(
    "normal_stored",
    "stored_for_later",
    (ARGUMENTS, f"normal_pointer, {ARGUMENTS}"),
    (LAUNCH, LAUNCH.replace("](x", "](torch.empty_like(x), x")),
    (STORE_Y, f"{STORE_Y}\n    {STORE_Y.replace('y_pointer', 'normal_pointer')}"),
)

# The backward pass
answers.edit("undefined_numbers", "no_other_backward", (LOAD_X, LOAD_X.replace(", other=0.0", "")))
answers.edit("statistics_constant", "constants", (DX, "rstd * delta"))
answers.edit("races", "one_row_for_all", (OWN, "own = column"), (PARTS, ZEROS))
answers.edit(
    "races",
    "atomic_additions",
    (STORE_DW, ADD.format("dw")),
    (STORE_DB, ADD.format("db")),
    (PARTS, ZEROS),
)
answers.edit(None, "program_per_row", (PROGRAMS, "programs = rows"))
answers.edit("gradient_strides", "as_in_memory", ("dy.contiguous()", "dy"))
answers.edit(None, "loaded_again", (DX, f"{DX} + 0 * {LOAD_X[4:]}"), says="avoid needless loads")
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


@answers.wrong("raises", says="does not require grad")
def no_function(x, weight, bias, eps=1e-5):
    y, (mean, rstd) = torch.empty_like(x), torch.empty(2, len(x))
    block = triton.next_power_of_2(x.shape[1])
    norm_kernel[(len(x),)](x, weight, bias, y, mean, rstd, x.shape[1], eps, BLOCK=block)
    return y


answers.right_edit("fewer_programs", (PROGRAMS, "programs = min(rows, 7)"))
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
