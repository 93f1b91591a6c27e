"""Answers to `matmul`."""

import torch
import triton
import triton.language as tl

from parlab.answers import Answers

answers = Answers("matmul")
REFERENCE = answers.reference()
matmul_kernel = REFERENCE.__globals__["matmul_kernel"]
tile_of = REFERENCE.__globals__["tile_of"]

TILE_OF = "return first + inside % height, inside // height"
HEIGHT = "height = tl.minimum(rows - first, GROUP)"
TOTAL = "total = tl.zeros((TILE, TILE), dtype=tl.float32)"
DOT = 'total = tl.dot(a, b, total, input_precision="ieee")'
MASK_A = "mask=(rows < m) & (along < k)"
STORE = "tl.store(c_pointer + rows * n + columns, total, mask=(rows < m) & (columns < n))"
OUT = "c = torch.empty((m, n), dtype=a.dtype, device=a.device)"
STRIDES = "*a.stride(), *b.stride()"
GRID = "triton.cdiv(m, 32) * triton.cdiv(n, 32)"
LAUNCH = "matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), GROUP=group, TILE=32)"

answers.edit("loads_outside", "no_mask_along_k", (MASK_A, "mask=rows < m"))
answers.edit("undefined_numbers", "no_other", (MASK_A + ", other=0.0", MASK_A))
answers.edit("stores_outside", "store_unmasked",
             (STORE, STORE.replace(", mask=(rows < m) & (columns < n)", "")))  # fmt: skip
answers.edit("wrong_programs", "one_more", (GRID, GRID + " + 1"))
answers.edit("row_by_row", "no_groups", (TILE_OF, "return program // columns, program % columns"))
answers.edit("last_group_as_high", "always_full", (HEIGHT, "height = GROUP"))
answers.edit("half_sums", "sums_of_16_bits",
             (TOTAL, "total = tl.zeros((TILE, TILE), dtype=c_pointer.dtype.element_ty)"),
             (DOT, "total = (total.to(tl.float32) + tl.dot(a, b)).to(total.dtype)"))  # fmt: skip
answers.edit("strides_ignored", "as_if_contiguous", (STRIDES, "k, 1, n, 1"))
answers.edit("no_launch", "torch_alone", (LAUNCH, "torch.matmul(a, b, out=c)"))
answers.edit("several_launches", "twice", (LAUNCH, LAUNCH + "\n    " + LAUNCH))
answers.edit("not_by_kernel", "torch_in_the_end", ("    return c", "    return c.clone()"))
answers.edit("wrong_dtype", "float32_always", (OUT, OUT.replace("dtype=a.dtype, ", "")))
answers.edit(None, "first_step_alone", (DOT, "total = tl.where(first == 0, tl.dot(a, b), total)"))
answers.edit("row_by_row", "rows_in_a_group_first",
             (TILE_OF, "return first + inside // columns, inside % columns"))  # fmt: skip
answers.edit(
    None, "upwards", (TILE_OF, "return first + height - 1 - inside % height, inside // height")
)
answers.edit("not_by_kernel", "sums_cast_by_torch",
             (OUT, OUT.replace("dtype=a.dtype", "dtype=torch.float32")),
             ("    return c", "    return c.to(a.dtype)"))  # fmt: skip
TWO_LAYOUTS = (
    "*((k, 1) if a.is_contiguous() else (1, m)), *((n, 1) if b.is_contiguous() else (1, k))"
)
answers.edit("loads_outside", "contiguous_or_transposed", (STRIDES, TWO_LAYOUTS))
answers.edit("returns_none", "no_return", ("    return c", "    pass"))


@triton.jit
def on_two_axes_kernel(
    a, b, c, m, n, k, a0, a1, b0, b1, GROUP: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    row, column = tile_of(program, tl.cdiv(m, T), tl.cdiv(n, T), GROUP)
    rows = row * T + tl.arange(0, T)[:, None]
    columns = column * T + tl.arange(0, T)[None, :]
    total = tl.zeros((T, T), dtype=tl.float32)
    for first in range(0, k, T):
        across, down = first + tl.arange(0, T)[None, :], first + tl.arange(0, T)[:, None]
        x = tl.load(a + rows * a0 + across * a1, mask=(rows < m) & (across < k), other=0.0)
        y = tl.load(b + down * b0 + columns * b1, mask=(down < k) & (columns < n), other=0.0)
        total += tl.dot(x, y, input_precision="ieee")
    tl.store(c + rows * n + columns, total, mask=(rows < m) & (columns < n))


@answers.right
def grid_of_two_axes(a, b, group=4):
    """Tiles numbered as a GPU starts them: the first axis is the quickest."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    on_two_axes_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), group, 32)
    return c


@answers.right
def copies_first(a, b, group=4):
    return REFERENCE(a.contiguous(), b.contiguous(), group)


@triton.jit
def moving_pointers(a, b, c, m, n, k, a0, a1, b0, b1, GROUP: tl.constexpr, T: tl.constexpr):
    row, column = tile_of(tl.program_id(0), tl.cdiv(m, T), tl.cdiv(n, T), GROUP)
    rows, columns = row * T + tl.arange(0, T), column * T + tl.arange(0, T)
    inner = tl.arange(0, T)
    a += rows[:, None] * a0 + inner[None, :] * a1
    b += inner[:, None] * b0 + columns[None, :] * b1
    total = tl.zeros((T, T), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, T)):
        left = k - step * T
        x = tl.load(a, mask=(rows[:, None] < m) & (inner[None, :] < left), other=0.0)
        y = tl.load(b, mask=(inner[:, None] < left) & (columns[None, :] < n), other=0.0)
        total += tl.dot(x, y, input_precision="ieee")
        a += T * a1
        b += T * b0
    place = rows[:, None] * n + columns[None, :]
    tl.store(c + place, total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@answers.right
def pointers_that_move(a, b, group=4):
    m, n = a.shape[0], b.shape[1]
    c = torch.zeros(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32), 1)
    moving_pointers[grid](a, b, c, m, n, a.shape[1], *a.stride(), *b.stride(), group, 32)
    return c


@answers.right
def grid_as_function(a, b, group=4):
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty((m, n))

    def grid(meta):
        return (triton.cdiv(m, meta["TILE"]) * triton.cdiv(n, meta["TILE"]),)

    a_row, a_column = a.stride()
    matmul_kernel[grid](
        a, b, c, m, n, k, a_row, a_column, b.stride(0), b.stride(1), GROUP=group, TILE=32
    )
    return c


@triton.jit
def wide_steps(a, b, c, m, n, k, a0, a1, b0, b1, GROUP: tl.constexpr):
    across = tl.cdiv(n, 32)
    program = tl.program_id(0)
    group = program // (GROUP * across)
    height = tl.cdiv(m, 32) - group * GROUP
    if height > GROUP:
        height = GROUP + height * 0
    within = program - group * GROUP * across
    rows = ((group * GROUP + within % height) * 32 + tl.arange(0, 32))[:, None]
    columns = (within // height * 32 + tl.arange(0, 32))[None, :]
    total = tl.zeros((32, 32), dtype=tl.float32)
    for first in range(0, k, 64):
        inner = first + tl.arange(0, 64)
        x = tl.load(
            a + rows * a0 + inner[None, :] * a1, (rows < m) & (inner[None, :] < k), other=0.0
        )
        y = tl.load(
            b + inner[:, None] * b0 + columns * b1, (inner[:, None] < k) & (columns < n), other=0.0
        )
        total = tl.dot(x.to(tl.float32), y.to(tl.float32), total, input_precision="ieee")
    tl.store(c + rows * n + columns, total, (rows < m) & (columns < n))


@answers.right
def steps_of_64(a, b, group=4):
    c = torch.empty((len(a), b.shape[1]), dtype=a.dtype, device=a.device)
    programs = triton.cdiv(c.shape[0], 32) * triton.cdiv(c.shape[1], 32)
    wide_steps[(programs,)](a, b, c, *c.shape, a.shape[1], *a.stride(), *b.stride(), GROUP=group)
    return c


@answers.right
def through_a_view(a, b, group=4):
    """The result in a larger buffer of one dimension."""
    m, n = a.shape[0], b.shape[1]
    buffer = torch.empty(m * n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32),)
    strides = (*a.stride(), *b.stride())
    matmul_kernel[grid](a, b, buffer, m, n, a.shape[1], *strides, GROUP=group, TILE=32)
    return buffer.view(m, n)
