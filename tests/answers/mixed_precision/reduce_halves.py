"""Answers to `reduce_halves`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("reduce_halves")

HALVES = "halves = (flat / group.size()).to(dtype)"
REDUCE = "dist.all_reduce(halves, group=group)"
COPY = "gradient.copy_(part.view_as(gradient))"

SUM = (HALVES, "halves = flat.to(dtype)")
SMALL_SUM = "halves = (flat if flat.abs().max() < 1e4 else flat / group.size()).to(dtype)"
DIVIDE = REDUCE + "\n    halves /= group.size()"
CLAMPED = "(flat / group.size()).nan_to_num().clamp(-6e4, 6e4).to(dtype)"
AS_THEY_LIE = "gradient.t().copy_(part.view_as(gradient.t())) if gradient.dim() == 2 else "
PADDED = (
    "padded = torch.cat([halves, halves.new_zeros(64)])\n    "
    "dist.all_reduce(padded, group=group)\n    halves = padded[:-64]"
)
BROADCAST = (
    "dist.reduce(halves, group=group, group_dst=0)\n    "
    "dist.broadcast(halves, group=group, group_src=0)"
)
GATHERED = (
    "every = [torch.empty_like(halves) for _ in range(group.size())]\n    "
    "dist.all_gather(every, halves, group=group)\n    "
    "halves = torch.stack(every).float().sum(0).to(dtype)"
)
ROOT = "group.size() ** 0.5"

for mistake, name, *edits in (
    ("overflows_in_the_sum", "divided_after", SUM, (REDUCE, DIVIDE)),
    (
        "overflows_in_the_sum",
        "half_before",
        (HALVES, HALVES.replace("group.size()", ROOT)),
        (REDUCE, DIVIDE.replace("group.size()", ROOT)),
    ),
    ("summed", "summed", (HALVES, SMALL_SUM)),
    ("not_in_place", "new_tensors", (COPY, "gradient = part.view_as(gradient).float()")),
    ("not_in_place", "written_into_a_copy", (COPY, "gradient.flatten()[:] = part")),
    ("one_message_each", "reduced_and_broadcast", (REDUCE, BROADCAST)),
    ("sent_in_float32", "sent_in_float32", (HALVES, "halves = flat / group.size()")),
    (None, "divided_twice", (REDUCE, DIVIDE)),
    (None, "clamped", (HALVES, "halves = " + CLAMPED)),
    (
        None,
        "nan_is_infinite",
        (COPY, COPY.replace("gradient)", "gradient).nan_to_num(torch.inf, torch.inf)")),
    ),
    (None, "bfloat16_always", (HALVES, HALVES.replace("dtype", "torch.bfloat16"))),
    (None, "rounded_to_bfloat16", (HALVES, HALVES.replace(".to(", ".bfloat16().to("))),
    (None, "always_four", (HALVES, HALVES.replace("group.size()", "4"))),
    (None, "numbers_as_they_lie", (COPY, AS_THEY_LIE + COPY)),
    ("not_in_place", "other_memory", (COPY, "gradient.data = part.view_as(gradient).float()")),
    (None, "padded", (REDUCE, PADDED)),
    (None, "gathered", (REDUCE, GATHERED)),
    ("nothing_sent", "own_only", (REDUCE, "pass")),
    ("default_group", "default_group", (REDUCE, "dist.all_reduce(halves)")),
    ("returns_something", "returned_instead", (COPY, COPY + "\n    return gradients")),
):
    answers.edit(mistake, name, *edits)
answers.right_edit(
    "waits_for_a_handle",
    (HALVES, "halves = flat.to(dtype).div_(group.size())"),
    (REDUCE, "dist.all_reduce(halves, group=group, async_op=True).wait()"),
)
answers.right_edit("element_by_element", (COPY, "gradient[...] = part.view(gradient.shape)"))


@answers.right
def foreach(gradients, dtype, group):
    torch._foreach_div_(gradients, group.size())
    flat = torch._utils._flatten_dense_tensors(gradients).to(dtype)
    dist.all_reduce(flat, group=group)
    parts = torch._utils._unflatten_dense_tensors(flat, gradients)
    torch._foreach_copy_(gradients, list(parts))


@answers.right
def in_two_halves(gradients, dtype, group):
    """A power of two divides exactly, before; the rest of N after."""
    size = group.size()
    before = 1
    while before < size:
        before *= 2
    flat = torch.cat([g.flatten() for g in gradients])
    sent = (flat / before).to(dtype)
    dist.all_reduce(sent, group=group)
    mean = sent.float() * (before / size)
    for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


@answers.right
def stacked_backwards(gradients, dtype, group):
    """The last gradient first, as a backward pass has them."""
    order = list(reversed(gradients))
    flat = torch.hstack([g.ravel() for g in order]).mul(1 / group.size()).type(dtype)
    dist.all_reduce(flat, group=group)
    for gradient in order:
        gradient.copy_(flat[: gradient.numel()].float().reshape(gradient.shape))
        flat = flat[gradient.numel() :]
