"""Answers to `matmul`."""

import triton
import triton.language as tl

from parlab_staff.answers import Answers

answers = Answers("matmul")
reference = answers.reference()
matmul_kernel = reference.__globals__["matmul_kernel"]

TILE_OF = "return first + inside % height, inside // height"
HEIGHT = "height = tl.minimum(rows - first, GROUP)"
PROGRAM = "tile_of(tl.program_id(0), "
ON_TWO_AXES = "tile_of(tl.program_id(0) + tl.num_programs(0) * tl.program_id(1), "
LOOP = "for first in range(0, k, TILE):\n        inner = (first + tl.arange(0, TILE)).to(tl.int64)"
TOTAL = "total = tl.zeros((TILE, TILE), dtype=tl.float32)"
DOT = 'total = tl.dot(a, b, total, input_precision="ieee")'
MASK_A = "mask=(rows < m) & (along < k)"
MASK = ", mask=(rows < m) & (columns < n)"
STORE = f"tl.store(c_pointer + rows * n + columns, total{MASK})"
OUT = "c = torch.empty((m, n), dtype=a.dtype, device=a.device)"
STRIDES = "*a.stride(), *b.stride()"
PROGRAMS = "triton.cdiv(m, 32) * triton.cdiv(n, 32)"
GRID = f"grid = ({PROGRAMS},)"
RETURN = "    return c"
TWO_LAYOUTS = (
    "*((k, 1) if a.is_contiguous() else (1, m)), *((n, 1) if b.is_contiguous() else (1, k))"
)
HALF_SUMS = (
    (TOTAL, "total = tl.zeros((TILE, TILE), dtype=c_pointer.dtype.element_ty)"),
    (DOT, "total = (total.to(tl.float32) + tl.dot(a, b)).to(total.dtype)"),
)
UPWARDS = "return first + height - 1 - inside % height, inside // height"

answers.edit("outside", "no_mask_along_k", (MASK_A, "mask=rows < m"))
answers.edit("undefined_numbers", "no_other", (MASK_A + ", other=0.0", MASK_A))
answers.edit(None, "one_more", (GRID, f"grid = ({PROGRAMS} + 1,)"))
answers.edit("row_by_row", "no_groups", (TILE_OF, "return program // columns, program % columns"))
answers.edit(None, "upwards", (TILE_OF, UPWARDS))
answers.edit(None, "always_full", (HEIGHT, "height = GROUP"))
answers.edit(None, "sums_of_16_bits", *HALF_SUMS, says="computed in float32")
answers.edit("strides_ignored", "as_if_contiguous", (STRIDES, "k, 1, n, 1"))
answers.edit("outside", "contiguous_or_transposed", (STRIDES, TWO_LAYOUTS))
answers.edit("not_by_kernel", "torch_in_the_end", (RETURN, "    return c.clone()"))
answers.edit("wrong_dtype", "float32_always", (OUT, OUT.replace("dtype=a.dtype, ", "")))
answers.edit(
    None, "stored_in_each_step", (DOT, f"{DOT}\n        {STORE}"), says="each element once"
)

# A GPU starts programs along the first axis first.
answers.right_edit("grid_of_two_axes", (GRID, GRID.replace(" *", ",")), (PROGRAM, ON_TWO_AXES))
answers.right_edit("steps_of_64", (LOOP, LOOP.replace("TILE", "64")))
answers.right_edit("grid_as_function", (GRID, f"grid = lambda meta: ({PROGRAMS}, 1, 1)"))


@answers.right
def copies_first(a, b, group=4):
    return reference(a.contiguous(), b.contiguous(), group)


@triton.jit
def moving_pointers(a, b, c, m, n, k, a0, a1, b0, b1, GROUP: tl.constexpr):
    per_group = GROUP * tl.cdiv(n, 32)
    first, inside = tl.program_id(0) // per_group * GROUP, tl.program_id(0) % per_group
    height = tl.minimum(tl.cdiv(m, 32) - first, GROUP)
    inner = tl.arange(0, 32)
    rows = ((first + inside % height) * 32 + inner)[:, None]
    columns = (inside // height * 32 + inner)[None, :]
    a += rows * a0 + inner[None, :] * a1
    b += inner[:, None] * b0 + columns * b1
    total = tl.zeros((32, 32), dtype=tl.float32)
    for start in range(0, k, 32):
        x = tl.load(a, mask=(rows < m) & (inner[None, :] < k - start), other=0.0)
        y = tl.load(b, mask=(inner[:, None] < k - start) & (columns < n), other=0.0)
        total = tl.dot(x.to(tl.float32), y.to(tl.float32), total, input_precision="ieee")
        a += 32 * a1
        b += 32 * b0
    tl.store(c + rows * n + columns, total, mask=(rows < m) & (columns < n))


@answers.right
def pointers_that_move(a, b, group=4):
    (m, k), n = a.shape, b.shape[1]
    c = a.new_zeros((m, n))
    grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32),)
    moving_pointers[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), GROUP=group)
    return c


answers.edit(
    None,
    "one_result_for_all_calls",
    (OUT, f"{OUT}\n    c = matmul.__dict__.setdefault((m, n, a.dtype), c)"),
    says="changes the result of the first one",
)
