"""Answers to `f_and_g`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("f_and_g")

F_FORWARD = "        return x.view_as(x)\n"
F_BACKWARD = (
    "        total = gradient.clone(memory_format=torch.contiguous_format)\n"
    "        dist.all_reduce(total, group=ctx.group)\n"
)
G_FORWARD = (
    "        total = x.clone(memory_format=torch.contiguous_format)\n"
    "        dist.all_reduce(total, group=group)\n"
)
G_BACKWARD = "        return gradient, None\n"
ONE_BUFFER = """\
        total = ReduceFromRanks.__dict__.get(str(x.shape))
        if total is None or total.dtype != x.dtype:
            total = torch.empty(x.shape, dtype=x.dtype)
            setattr(ReduceFromRanks, str(x.shape), total)
        total.copy_(x)
        dist.all_reduce(total, group=group)
        total = total.detach()
"""

answers.edit("not_summed", "f_is_nothing", (F_BACKWARD, "        total = gradient\n"))
answers.edit("not_summed", "g_is_nothing", (G_FORWARD, "        total = x.clone()\n"))
answers.edit(
    None,
    "g_skips_what_is_frozen",
    (
        G_FORWARD,
        "        total = x.clone(memory_format=torch.contiguous_format)\n"
        "        if ctx.needs_input_grad[0]:\n"
        "            dist.all_reduce(total, group=group)\n",
    ),
    says="needs no gradient",
)
answers.edit("sums_again", "both_sum", (F_FORWARD, G_FORWARD + "        return total\n"))
answers.edit(
    "sums_again",
    "g_backward_too",
    (G_FORWARD, "        ctx.over = group\n" + G_FORWARD),
    (G_BACKWARD, F_BACKWARD.replace("ctx.group", "ctx.over") + "        return total, None\n"),
)
answers.edit(
    "sends_more",
    "f_counts_the_ranks",
    (F_BACKWARD, F_BACKWARD + "        dist.all_reduce(torch.ones(1), group=ctx.group)\n"),
)
answers.edit(
    None,
    "one_group_for_all",
    ("ctx.group = group", "CopyToRanks.group = group"),
    ("ctx.group)", "CopyToRanks.group)"),
    says="for another group",
)
answers.edit("overwritten", "one_buffer", (G_FORWARD, ONE_BUFFER))
answers.edit(
    None,
    "in_half_the_digits",
    (
        G_FORWARD,
        G_FORWARD.replace("x.clone(", "x.float().clone(") + "        total = total.to(x.dtype)\n",
    ),
    says="(15 of 15 differ)",
)
answers.edit(
    "argument_changed", "in_place", ("x.clone(memory_format=torch.contiguous_format)", "x.detach()")
)
answers.edit(
    "argument_changed",
    "gradient_in_place",
    ("gradient.clone(memory_format=torch.contiguous_format)", "gradient"),
)
answers.edit(
    "default_group", "default_group", ("all_reduce(total, group=ctx.group)", "all_reduce(total)")
)
answers.edit(
    "memory_order",
    "clone_keeps_the_order",
    ("x.clone(memory_format=torch.contiguous_format)", "x.clone()"),
)
answers.edit(
    "memory_order",
    "like_the_gradient",
    (
        "gradient.clone(memory_format=torch.contiguous_format)",
        "torch.empty_like(gradient).copy_(gradient)",
    ),
)


class Mirror(torch.autograd.Function):
    """Any two functions, one forward and one backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.way_back = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.way_back(gradient), None, None


def mirrored(summed):
    return (
        lambda x: Mirror.apply(x, torch.clone, summed),
        lambda x: Mirror.apply(x, summed, torch.clone),
    )


def in_halves(group):
    def summed(tensor):
        flat = F.pad(tensor.reshape(-1), (0, -tensor.numel() % group.size()))
        own = flat.new_empty(flat.numel() // group.size())
        dist.reduce_scatter_single(own, flat.contiguous(), group=group)
        whole = torch.empty_like(flat)
        dist.all_gather_single(whole, own, group=group)
        return whole[: tensor.numel()].clone().view(tensor.shape)

    return summed


@answers.right
def two_halves(group):
    return mirrored(in_halves(group))


@answers.right
def by_gathering(group):
    """On two ranks, all ranks' numbers are gathered and added."""

    def summed(tensor):
        whole = tensor.new_empty(group.size(), tensor.numel())
        dist.all_gather_single(whole.view(-1), tensor.reshape(-1).contiguous(), group=group)
        return whole.sum(0).view(tensor.shape)

    return mirrored(summed if group.size() <= 2 else in_halves(group))


@answers.right
def hook(group):
    """f is a hook on the tensor; g is not waited for at once."""

    def summed(tensor):
        total = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        dist.all_reduce(total, dist.ReduceOp.SUM, group, async_op=True).wait()
        return total

    def f(x):
        y = x.view_as(x)
        if y.requires_grad:
            y.register_hook(summed)
        return y

    return f, mirrored(summed)[1]


@answers.right
def new_style(group):
    """The functions set up their context apart from the forward pass."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.contiguous().clone()
            dist.all_reduce(total, group=group)
            return total

    return Copy.apply, answers.reference()(group)[1]


@answers.right
def nothing_alone(group):
    if group.size() == 1:
        return [torch.clone, torch.clone]
    return mirrored(in_halves(group))
