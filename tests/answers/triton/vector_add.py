"""Answers to `vector_add`."""

import torch

from parlab_staff.answers import Answers

answers = Answers("vector_add")
reference = answers.reference()

OFFSETS = "offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)"
MASK = "mask = offsets < n"
Y = "tl.load(y_pointer + offsets, mask=mask)"
STORE = "tl.store(out_pointer + offsets, x + y, mask=mask)"
OUT = "out = torch.empty_like(x)"
GRID = "(triton.cdiv(n, block),)"
LAUNCH = "add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)"
RETURN = "return out"
SUM = "x.to(tl.float32) + y.to(tl.float32)"
AGAIN = "offsets = tl.minimum(offsets, n - 1)\n    mask = offsets < n"
IN_PLACE = (LAUNCH, LAUNCH.replace("out", "x")), (RETURN, "return x")
TORCH_LAST = (STORE, STORE.replace("x + y", "x")), (RETURN, "return out.copy_(torch.add(x, y))")

answers.edit("outside", "no_mask", (MASK, "mask = offsets >= 0"))
answers.edit("outside", "loads_masked_alone", (STORE, STORE.replace(", mask=mask", "")))
answers.edit(None, "full_blocks_alone", (GRID, "(n // block,)"))
answers.edit(None, "program_per_element", (GRID, "(n,)"))
answers.edit(None, "at_most_16_programs", (GRID, "(min(16, triton.cdiv(n, block)),)"))
answers.edit("not_by_kernel", "no_program_id", (OFFSETS, "offsets = tl.arange(0, BLOCK)"))
answers.edit("argument_changed", "in_place", *IN_PLACE)
answers.edit("not_by_kernel", "torch_adds", (RETURN, "return x + y"))
answers.edit("no_launch", "no_kernel", (LAUNCH, "torch.add(x, y, out=out)"))
answers.edit("several_launches", "twice", (LAUNCH, LAUNCH + "\n    " + LAUNCH))
answers.edit("wrong_dtype", "always_float32", (OUT, "out = torch.empty(x.shape)"))
answers.edit(None, "integers_as_float32", (STORE, STORE.replace("x + y", SUM)))
answers.edit(None, "last_element_again_and_again", (MASK, AGAIN), says="which has 1")
answers.edit(None, "torch_after_the_kernel", *TORCH_LAST, says="after a kernel has stored them")
answers.edit(None, "zeros_added", (LAUNCH, "x, y = x + y, torch.zeros_like(y)\n    " + LAUNCH))

answers.right_edit("grid_as_function", (GRID, '(lambda meta: (triton.cdiv(n, meta["BLOCK"]),))'))
answers.right_edit("second_axis", (GRID, "(1, triton.cdiv(n, block))"), ("id(0)", "id(1)"))
answers.right_edit(
    "from_the_end",
    ("tl.program_id(0).to(tl.int64) *", "(tl.num_programs(0) - 1 - tl.program_id(0)) *"),
)
answers.right_edit(
    "onto_a_copy",
    (OUT, "out = y.clone()"),
    (Y, "tl.load(out_pointer + offsets, mask=mask)"),
)


@answers.right
def flattened(x: torch.Tensor, y: torch.Tensor, block: int = 1024) -> torch.Tensor:
    return reference(x.view(-1), y.view(-1), block).view(x.shape)


answers.edit(
    None,
    "one_result_for_all_calls",
    (OUT, "out = vector_add.__dict__.setdefault((x.shape, x.dtype), torch.empty_like(x))"),
    says="changes the result of the first one",
)
