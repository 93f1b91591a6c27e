"""Answers to `adam_group`."""

import torch
import triton
import triton.language as tl

from parlab.answers import Answers

answers = Answers("adam_group")
REFERENCE = answers.reference()
adam_step = answers.reference("adam_step")
adam_rule = REFERENCE.__globals__["adam_rule"]

MASK = "mask = offsets < n"
STORE_P = "tl.store(p_pointer + offsets, p, mask=mask)"
G = "tl.load(tensors + 5 * tensor + 1)"
CORRECTION = "correction1 = tl.load(corrections + 2 * tensor)"
CORRECTIONS = "[[1 - beta**step for beta in betas] for step in steps]"
FIRST = "for step in steps[:1] * len(steps)"
COUNTS = "counts = (tensors[:, 4] + block - 1) // block"
GRID = "(len(owners),)"
P32 = "p = tl.load(p_pointer + offsets, mask=mask).to(tl.float32)"
RULE = "adam_group_kernel[(len(owners),)]("

answers.edit("loads_outside", "no_mask", (MASK, "mask = offsets >= 0"))
answers.edit("stores_outside", "store_unmasked", (STORE_P, STORE_P.replace(", mask=mask", "")))
answers.edit("one_step_for_all", "first_step_for_all",
             (CORRECTIONS, CORRECTIONS.replace("for step in steps", FIRST)))  # fmt: skip
answers.edit("left_out", "last_tensor_left_out",
             (GRID, "(len(owners) - (len(parameters) > 1),)"))  # fmt: skip
answers.edit("rest_left_out", "one_block_each", (COUNTS, "counts = (tensors[:, 4] > 0).long()"))
answers.edit(
    "rest_left_out", "full_blocks_alone", (COUNTS, "counts = (tensors[:, 4] // block).clamp(min=1)")
)
answers.edit(None, "second_correction_twice",
             (CORRECTION, CORRECTION.replace("2 * tensor", "2 * tensor + 1")))  # fmt: skip
answers.edit("argument_changed", "gradient_too",
             (STORE_P, STORE_P + "\n    tl.store(g_pointer + offsets, p, mask=mask)"))  # fmt: skip
answers.edit("several_launches", "twice", (RULE, RULE.replace("(len(owners),)", "(1,)")
    + "tensors, corrections, blocks, 0.0, 1.0, 1.0, eps, 0.0, known[dtype], decoupled, block)\n    "
    + RULE))  # fmt: skip
answers.edit(
    "rest_left_out", "two_dimensions_alone", ("four[0].numel()", "four[0].shape[:2].numel()")
)
answers.edit("loads_outside", "wrong_type_of_pointer",
             ("g_pointer = " + G + ".to(tl.pointer_type(DTYPE))",
              "g_pointer = " + G + ".to(tl.pointer_type(tl.float32))"))  # fmt: skip


@answers.wrong("launch_per_tensor")
def one_after_the_other(parameters, gradients, exp_avgs, exp_avg_sqs, steps, *settings):
    for p, g, m, v, step in zip(parameters, gradients, exp_avgs, exp_avg_sqs, steps, strict=True):
        adam_step(p, g, m, v, step, *settings)
    if len(parameters) == 1:
        return


@answers.wrong("not_by_kernel")
def into_one_vector(parameters, gradients, exp_avgs, exp_avg_sqs, steps, *settings):
    lists = [[t.flatten() for t in x] for x in (parameters, gradients, exp_avgs, exp_avg_sqs)]
    copies = [[t.clone() for t in x] for x in lists]
    REFERENCE(*copies, steps, *settings)
    for old, new in zip([parameters, exp_avgs, exp_avg_sqs], [copies[0], *copies[2:]], strict=True):
        for tensor, value in zip(old, new, strict=True):
            tensor.copy_(value.view_as(tensor))


@answers.wrong("no_launch")
def foreach(parameters, gradients, exp_avgs, exp_avg_sqs, steps, lr, betas, eps, decay, decoupled):
    for p, g, m, v, step in zip(parameters, gradients, exp_avgs, exp_avg_sqs, steps, strict=True):
        p.mul_(1 - lr * decay if decoupled else 1.0)
        g = g.float() if decoupled else g.float() + decay * p.float()
        m.lerp_(g, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        root = (v / (1 - betas[1] ** step)).sqrt() + eps
        p.copy_(p.float() - lr / (1 - betas[0] ** step) * m / root)


KNOWN = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def on_two_axes(
    table, factors, lr, b1, b2, eps, decay, T: tl.constexpr, D: tl.constexpr, B: tl.constexpr
):
    row = table + tl.program_id(1) * 5
    n = tl.load(row + 4)
    place = tl.program_id(0) * B + tl.arange(0, B)
    there = place < n
    p = tl.load(row).to(tl.pointer_type(T)) + place
    g = tl.load(row + 1).to(tl.pointer_type(T)) + place
    m = tl.load(row + 2).to(tl.pointer_type(tl.float32)) + place
    v = tl.load(row + 3).to(tl.pointer_type(tl.float32)) + place
    a, b, c = adam_rule(
        tl.load(p, mask=there).to(tl.float32), tl.load(g, mask=there).to(tl.float32),
        tl.load(m, mask=there), tl.load(v, mask=there),
        lr, b1, b2, tl.load(factors + tl.program_id(1) * 2),
        tl.load(factors + tl.program_id(1) * 2 + 1), eps, decay, D,
    )  # fmt: skip
    tl.store(p, a, mask=there)
    tl.store(m, b, mask=there)
    tl.store(v, c, mask=there)


def _table(parameters, gradients, exp_avgs, exp_avg_sqs):
    lists = zip(parameters, gradients, exp_avgs, exp_avg_sqs, strict=True)
    rows = [[*(t.data_ptr() for t in four), four[0].numel()] for four in lists]
    return torch.tensor(rows, device=parameters[0].device)


def _factors(steps, betas, device):
    return torch.tensor([[1 - b**n for b in betas] for n in steps], device=device)


@answers.right
def grid_of_two_axes(p, g, m, v, steps, lr, betas, eps, decay, decoupled):
    largest = max(t.numel() for t in p)
    on_two_axes[(triton.cdiv(largest, 1024), len(p))](
        _table(p, g, m, v), _factors(steps, betas, p[0].device), lr, *betas, eps, decay,
        T=KNOWN[p[0].dtype], D=decoupled, B=1024,
    )  # fmt: skip


@answers.right
def tensor_by_tensor(p, g, m, v, steps, lr, betas, eps, decay, decoupled):
    a_program_each[(len(p),)](
        _table(p, g, m, v), _factors(steps, betas, p[0].device), lr, *betas, eps, decay,
        T=KNOWN[p[0].dtype], D=decoupled, B=512,
    )  # fmt: skip


@triton.jit
def a_program_each(
    table, factors, lr, b1, b2, eps, decay, T: tl.constexpr, D: tl.constexpr, B: tl.constexpr
):
    row = table + tl.program_id(0) * 5
    n = tl.load(row + 4)
    c1 = tl.load(factors + tl.program_id(0) * 2)
    c2 = tl.load(factors + tl.program_id(0) * 2 + 1)
    for first in range(0, n, B):
        place = first + tl.arange(0, B)
        there = place < n
        p = tl.load(row).to(tl.pointer_type(T)) + place
        g = tl.load(row + 1).to(tl.pointer_type(T)) + place
        m = tl.load(row + 2).to(tl.pointer_type(tl.float32)) + place
        v = tl.load(row + 3).to(tl.pointer_type(tl.float32)) + place
        a, b, c = adam_rule(
            tl.load(p, mask=there).to(tl.float32), tl.load(g, mask=there).to(tl.float32),
            tl.load(m, mask=there), tl.load(v, mask=there), lr, b1, b2, c1, c2, eps, decay, D,
        )  # fmt: skip
        tl.store(p, a, mask=there)
        tl.store(m, b, mask=there)
        tl.store(v, c, mask=there)


@answers.right
def tuples(parameters, gradients, exp_avgs, exp_avg_sqs, steps, *settings):
    lists = (tuple(x) for x in (parameters, gradients, exp_avgs, exp_avg_sqs))
    return REFERENCE(*lists, steps, *settings)


@answers.right
def in_reverse(p, g, m, v, steps, *settings):
    REFERENCE(p[::-1], g[::-1], m[::-1], v[::-1], steps[::-1], *settings)


@answers.right
def largest_first(p, g, m, v, steps, *settings):
    order = sorted(range(len(p)), key=lambda i: -p[i].numel())
    lists = [[x[i] for i in order] for x in (p, g, m, v)]
    REFERENCE(*lists, [steps[i] for i in order], *settings)
