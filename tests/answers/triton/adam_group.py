"""Answers to `adam_group`."""

import torch
import triton
import triton.language as tl

from parlab_staff.answers import Answers

answers = Answers("adam_group")
reference = answers.reference()
adam_step = answers.reference("adam_step")
adam_rule = reference.__globals__["adam_rule"]

MASK = "rest, rest < n,"
WHOLE = "whole = n // BLOCK * BLOCK"
CORRECTIONS = "[[1 - beta**step for beta in betas] for step in steps]"
FIRST = "for step in steps[:1] * len(steps)"
SIZES = "tuple(row[4] for row in rows)"
G = "g_pointer = tl.load(row + 1).to(tl.pointer_type(DTYPE))"

answers.edit("outside", "no_mask", (MASK, "rest, rest >= 0,"))
answers.edit(
    None,
    "first_step_for_all",
    (CORRECTIONS, CORRECTIONS.replace("for step in steps", FIRST)),
)
answers.edit(None, "one_chunk_each", (SIZES, "(1,) * len(rows)"))
answers.edit(
    "raises",
    "aligned_only",
    ("    correction1 = tl.load", "        correction1 = tl.load"),
    says="multiples of 16 bytes",
)
answers.edit(None, "two_dimensions", ("four[0].numel()", "four[0].shape[:2].numel()"))
answers.edit(None, "wrong_type_of_pointer", (G, G.replace("DTYPE", "tl.float32")))
answers.edit(
    "argument_changed",
    "gradient_too",
    (WHOLE, f"{WHOLE}\n    tl.store(g_pointer, tl.load(p_pointer))"),
)

kept: dict = {}


@answers.wrong("kept_tables")
def tables_of_the_first_call(parameters, *rest):
    lists, settings = (parameters, *rest[:4]), rest[4:]
    reference(*kept.setdefault(len(parameters), lists), *settings)


@answers.wrong("several_launches")
def one_after_the_other(*arguments):
    for one in zip(*arguments[:5], strict=True):
        adam_step(*one, *arguments[5:])


@answers.wrong("not_by_kernel")
def into_one_vector(*arguments):
    copies = [[t.clone() for t in tensors] for tensors in arguments[:4]]
    reference(*copies, *arguments[4:])
    for i in (0, 2, 3):
        for tensor, value in zip(arguments[i], copies[i], strict=True):
            tensor.copy_(value)


answers.right_edit("smaller_chunks", ("= 16_384,", "= 4096,"))
answers.right_edit(
    "masked_everywhere",
    (WHOLE, "whole = 0"),
    ("chunk, dtype, device = 16_384", "chunk, dtype, device = 1024"),
)


@answers.right
def largest_first(*arguments):
    order = sorted(range(len(arguments[0])), key=lambda i: -arguments[0][i].numel())
    reference(*([values[i] for i in order] for values in arguments[:5]), *arguments[5:])


@triton.jit
def program_per_tensor(
    table, corrections, lr, share1, share2, eps, decay,
    T: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = table + tl.program_id(0) * 5
    c1 = tl.load(corrections + tl.program_id(0) * 2)
    c2 = tl.load(corrections + tl.program_id(0) * 2 + 1)
    n = tl.load(row + 4)
    for first in range(tl.program_id(1) * B, n, tl.num_programs(1) * B):
        place = first + tl.arange(0, B)
        p = tl.load(row).to(tl.pointer_type(T)) + place
        g = tl.load(row + 1).to(tl.pointer_type(T)) + place
        m = tl.load(row + 2).to(tl.pointer_type(tl.float32)) + place
        v = tl.load(row + 3).to(tl.pointer_type(tl.float32)) + place
        a, b, c = adam_rule(
            tl.load(p, mask=place < n).to(tl.float32), tl.load(g, mask=place < n).to(tl.float32),
            tl.load(m, mask=place < n), tl.load(v, mask=place < n),
            lr, share1, share2, c1, c2, eps, decay, D,
        )  # fmt: skip
        tl.store(p, a, mask=place < n)
        tl.store(m, b, mask=place < n)
        tl.store(v, c, mask=place < n)


def _launch(programs, parameters, gradients, exp_avgs, exp_avg_sqs, steps, lr, betas, eps, *decay):
    lists = zip(parameters, gradients, exp_avgs, exp_avg_sqs, strict=True)
    rows = [[*(t.data_ptr() for t in four), four[0].numel()] for four in lists]
    corrections = [[1 - b**n for b in betas] for n in steps]
    device, dtype = parameters[0].device, getattr(tl, str(parameters[0].dtype)[6:])
    program_per_tensor[(len(rows), programs)](
        torch.tensor(rows, device=device), torch.tensor(corrections, device=device),
        lr, 1 - betas[0], 1 - betas[1], eps, decay[0], T=dtype, D=decay[1], B=1024,
    )  # fmt: skip


@answers.right
def tensor_by_tensor(*arguments):
    _launch(1, *arguments)


@answers.right
def grid_of_two_axes(*arguments):
    _launch(triton.cdiv(max(t.numel() for t in arguments[0]), 1024), *arguments)
