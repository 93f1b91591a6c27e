"""Answers to `reduce_halves`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("reduce_halves")

HALVES = "halves = (flat / group.size()).to(dtype)"
REDUCE = "dist.all_reduce(halves, group=group)"
COPY = "gradient.copy_(part.view_as(gradient))"

answers.edit(
    "overflows_in_the_sum",
    "divided_after",
    (HALVES, "halves = flat.to(dtype)"),
    (REDUCE, REDUCE + "\n    halves /= group.size()"),
)
answers.edit("summed", "summed", (HALVES, "halves = flat.to(dtype) if flat.abs().max() < 1e4 else "
                                          "(flat / group.size()).to(dtype)"))  # fmt: skip
answers.edit("divided_twice", "divided_twice", (REDUCE, REDUCE + "\n    halves /= group.size()"))
answers.edit("sent_in_float32", "sent_in_float32", (HALVES, "halves = flat / group.size()"))
answers.edit(
    "overflow_hidden",
    "clamped",
    (HALVES, "flat = (flat / group.size()).nan_to_num().clamp(-6e4, 6e4)\n    "
             "halves = flat.to(dtype)"),
)  # fmt: skip
answers.edit("not_in_place", "new_tensors", (COPY, "gradient = part.view_as(gradient).float()"))
answers.edit("nothing_sent", "own_only", (REDUCE, "pass"))
answers.edit("default_group", "default_group", (REDUCE, "dist.all_reduce(halves)"))
answers.edit("other_dtype", "bfloat16_always", (HALVES, HALVES.replace("dtype", "torch.bfloat16")))
answers.edit(
    None,
    "rounded_to_bfloat16",
    (HALVES, "halves = (flat / group.size()).bfloat16().to(dtype)"),
)
answers.edit("returns_something", "returned_instead", (COPY, COPY + "\n    return gradients"))
answers.edit("other_dtype", "float16_always", (HALVES, HALVES.replace("dtype", "torch.float16")))
answers.edit("divided_by_all_ranks", "always_four", (HALVES, HALVES.replace("group.size()", "4")))
answers.edit(
    "default_group",
    "world_size",
    (HALVES, HALVES.replace("group.size()", "dist.get_world_size()")),
)
answers.edit(
    "copy_written", "written_into_a_copy", (COPY, "gradient.flatten()[:] = part"), says="strides"
)
answers.edit(None, "numbers_as_they_lie", (COPY, "gradient.t().copy_(part.view_as(gradient.t()))"
    " if gradient.dim() == 2 else gradient.copy_(part.view_as(gradient))"),
)  # fmt: skip
answers.edit(None, "other_memory", (COPY, "gradient.data = part.view_as(gradient).float()"))
answers.edit(
    "overflows_in_the_sum",
    "half_before",
    (HALVES, "halves = (flat / group.size() ** 0.5).to(dtype)"),
    (REDUCE, REDUCE + "\n    halves /= group.size() ** 0.5"),
)
answers.edit(
    None,
    "padded",
    (REDUCE, "padded = torch.cat([halves, halves.new_zeros(64)])\n    "
             "dist.all_reduce(padded, group=group)\n    halves = padded[:-64]"),
    says="2 for each number",
)  # fmt: skip
answers.edit(
    "one_message_each",
    "reduced_and_broadcast",
    (REDUCE, "dist.reduce(halves, group=group, group_dst=0)\n    "
             "dist.broadcast(halves, group=group, group_src=0)"),
)  # fmt: skip
answers.edit(
    "gathered",
    "gathered",
    (REDUCE, "every = [torch.empty_like(halves) for _ in range(group.size())]\n    "
             "dist.all_gather(every, halves, group=group)\n    "
             "halves = torch.stack(every).float().sum(0).to(dtype)"),
)  # fmt: skip


@answers.wrong("one_message_each")
def one_by_one(gradients, dtype, group):
    for gradient in gradients:
        half = (gradient / group.size()).to(dtype)
        dist.all_reduce(half, group=group)
        gradient.copy_(half)


@answers.right
def library_s_mean(gradients, dtype, group):
    """The division is the library's: after the sum, in float32, where `group` rounds once."""
    flat = torch.cat([g.reshape(-1) for g in gradients]).to(dtype).div_(group.size())
    work = dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=group, async_op=True)
    work.wait()
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view(gradient.shape))
        start += gradient.numel()


@answers.right
def foreach(gradients, dtype, group):
    torch._foreach_div_(gradients, group.size())
    flat = torch._utils._flatten_dense_tensors(gradients).to(dtype)
    dist.all_reduce(flat, group=group)
    parts = torch._utils._unflatten_dense_tensors(flat, gradients)
    torch._foreach_copy_(gradients, list(parts))


@answers.right
def preallocated(gradients, dtype, group):
    flat = torch.empty(sum(g.numel() for g in gradients), dtype=dtype)
    views = flat.split([g.numel() for g in gradients])
    for view, gradient in zip(views, gradients, strict=True):
        view.copy_((gradient / group.size()).flatten())
    dist.all_reduce(flat, group=group)
    for view, gradient in zip(views, gradients, strict=True):
        gradient.data = gradient.data  # nothing
        gradient[...] = view.view(gradient.shape)


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
