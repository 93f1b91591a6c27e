"""Answers to `vector_add`."""

import torch
import triton
import triton.language as tl

from parlab.answers import Answers

answers = Answers("vector_add")

OFFSETS = "offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
MASK = "mask = offsets < n"
X = "tl.load(x_pointer + offsets, mask=mask)"
STORE = "tl.store(out_pointer + offsets, x + y, mask=mask)"
OUT = "out = torch.empty_like(x)"
GRID = "(triton.cdiv(n, block),)"
LAUNCH = "add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)"
RETURN = "return out"

answers.edit("loads_outside", "no_mask", (MASK, "mask = offsets >= 0"))
answers.edit("loads_outside", "store_masked_alone", (X, "tl.load(x_pointer + offsets)"))
answers.edit("loads_outside", "one_too_many", (MASK, "mask = offsets <= n"))
answers.edit("stores_outside", "loads_masked_alone", (STORE, STORE.replace(", mask=mask", "")))
answers.edit("tail_left", "full_blocks_alone", (GRID, "(n // block,)"))
answers.edit("wrong_programs", "one_more", (GRID, "(n // block + 1,)"))
answers.edit("wrong_programs", "program_per_element", (GRID, "(n,)"))
answers.edit("first_block_only", "no_program_id", (OFFSETS, "offsets = tl.arange(0, BLOCK)"))
answers.edit(
    "argument_changed", "in_place", (LAUNCH, LAUNCH.replace("out", "x")), (RETURN, "return x")
)
answers.edit("not_by_kernel", "torch_adds", (RETURN, "return x + y"))
answers.edit("no_launch", "no_kernel", (LAUNCH, "torch.add(x, y, out=out)"))
answers.edit("several_launches", "twice", (LAUNCH, LAUNCH + "\n    " + LAUNCH))
answers.edit("not_by_kernel", "one_short", (MASK, "mask = offsets < n - 1"))
answers.edit(
    "not_by_kernel",
    "blocks_overlap",
    (OFFSETS, OFFSETS.replace("* BLOCK", "* (BLOCK - 1)")),
)
answers.edit(None, "doubled", (STORE, STORE.replace("x + y", "x + x")))
answers.edit(
    "wrong_dtype", "always_float32", (OUT, "out = torch.empty_like(x, dtype=torch.float32)")
)
answers.edit("wrong_shape", "flat", (OUT, "out = torch.empty_like(x).flatten()"))
SUM = "x.to(tl.float32) + y.to(tl.float32)"
answers.edit(None, "integers_as_float32", (STORE, STORE.replace("x + y", SUM)))
answers.edit(
    None,
    "last_element_again_and_again",
    (MASK, "offsets = tl.minimum(offsets, n - 1)\n    mask = offsets < n"),
    says="once each",
)
answers.edit(
    None,
    "torch_after_the_kernel",
    (STORE, STORE.replace("x + y", "x")),
    (RETURN, "return out.copy_(torch.add(x, y))"),
    says="not what a kernel stored",
)
answers.edit("returns_none", "no_return", (RETURN, "pass"))


@triton.jit
def other_kernel(out, a, b, n, BLOCK: tl.constexpr):
    first = tl.program_id(axis=0) * BLOCK
    place = first + tl.arange(0, BLOCK)
    there = place < n
    total = tl.load(b + place, there, other=0) + tl.load(a + place, there, other=0)
    tl.store(out + place, total, there)


@answers.right
def grid_as_function(x, y, block=1024):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    other_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        out, x, y, x.numel(), BLOCK=block
    )
    return out


@triton.jit
def accumulating_kernel(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < n
    tl.store(out + place, tl.load(x + place, mask=there) + tl.load(out + place, mask=there), there)


@answers.right
def onto_a_copy(x, y, block=1024):
    out = y.clone()
    accumulating_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), block)
    return out


@triton.jit
def pointers_moved(x, y, out, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    there = lanes < n - first
    x += first
    y += first
    out += first
    tl.store(out + lanes, tl.load(x + lanes, mask=there) + tl.load(y + lanes, mask=there), there)


@answers.right
def moved(x, y, block=1024):
    out = torch.zeros_like(x)
    pointers_moved[(-(-x.numel() // block), 1, 1)](x, y, out, x.numel(), BLOCK=block)
    return out


@triton.jit
def last_first(x, y, out, n, BLOCK: tl.constexpr):
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + place, mask=place < n, other=0)
    b = tl.load(y + place, mask=place < n, other=0)
    tl.store(out + place, a + b, mask=place < n)


@answers.right
def from_the_end(x, y, block=1024):
    flat = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
    last_first[((x.numel() + block - 1) // block,)](x.view(-1), y.view(-1), flat, x.numel(), block)
    return flat.view(x.shape)


@answers.right
def second_axis(x, y, block=1024):
    out = torch.empty_like(y)
    on_axis_1[(1, triton.cdiv(x.numel(), block))](x, y, out, x.numel(), block)
    return out


@triton.jit
def on_axis_1(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out + place,
        tl.load(x + place, mask=place < n) + tl.load(y + place, mask=place < n),
        mask=place < n,
    )
