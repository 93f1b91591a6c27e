"""Answers to `f_and_g`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

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
GROUP = "        ctx.group = group\n"

answers.edit("f_no_reduce_backward", "f_is_nothing", (F_BACKWARD, "        total = gradient\n"))
answers.edit("g_no_reduce_forward", "g_is_nothing", (G_FORWARD, "        total = x.clone()\n"))
answers.edit(
    "f_reduces_forward", "both_are_all_reduces", (F_FORWARD, G_FORWARD + "        return total\n")
)
answers.edit(
    "g_reduces_backward",
    "g_backward_too",
    (G_FORWARD, GROUP.replace("ctx.group", "ctx.over") + G_FORWARD),
    (
        G_BACKWARD,
        "        total = gradient.contiguous().clone()\n"
        "        dist.all_reduce(total, group=ctx.over)\n        return total, None\n",
    ),
)
answers.edit(
    "sends_more",
    "f_counts_the_ranks",
    (
        F_BACKWARD,
        F_BACKWARD + "        dist.all_reduce(torch.ones(1), group=ctx.group)\n",
    ),
)
answers.edit(
    "overwritten",
    "one_buffer",
    (
        G_FORWARD,
        "        total = ReduceFromRanks.__dict__.get(str(x.shape))\n"
        "        if total is None or total.dtype != x.dtype:\n"
        "            total = torch.empty(x.shape, dtype=x.dtype)\n"
        "            setattr(ReduceFromRanks, str(x.shape), total)\n"
        "        total.copy_(x)\n"
        "        dist.all_reduce(total, group=group)\n"
        "        total = total.detach()\n",
    ),
)
answers.edit(
    None,
    "in_half_the_digits",
    (
        G_FORWARD,
        G_FORWARD.replace("x.clone(", "x.float().clone(") + "        total = total.to(x.dtype)\n",
    ),
    says="is right (15 of 15 differ)",
)
answers.edit("averaged", "mean", (F_BACKWARD, F_BACKWARD + "        total /= ctx.group.size()\n"))
answers.edit(
    "averaged", "mean_of_outputs", (G_FORWARD, G_FORWARD + "        total /= group.size()\n")
)
answers.edit(
    "argument_changed",
    "in_place",
    (G_FORWARD, "        total = x.detach()\n        dist.all_reduce(total, group=group)\n"),
)
answers.edit(
    "argument_changed",
    "gradient_in_place",
    (F_BACKWARD, "        total = gradient\n        dist.all_reduce(total, group=ctx.group)\n"),
)
answers.edit(
    "default_group", "default_group", ("all_reduce(total, group=ctx.group)", "all_reduce(total)")
)
answers.edit(
    None,
    "row_major_only",
    (
        G_FORWARD,
        "        total = torch.empty(x.shape, dtype=x.dtype)\n"
        "        total.view(-1).copy_(torch.as_strided(x.detach(), (x.numel(),), (1,)))\n"
        "        dist.all_reduce(total, group=group)\n",
    ),
)
answers.edit(
    "f_reduces_forward",
    "barrier_first",
    (F_FORWARD, "        dist.barrier(group=group)\n" + F_FORWARD),
)


class _Halves(torch.autograd.Function):
    """An all-reduce in its two halves, one way or the other."""

    @staticmethod
    def forward(ctx, x, group, back):
        ctx.group, ctx.back = group, back
        return x.view_as(x) if back else _in_halves(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _in_halves(gradient, ctx.group) if ctx.back else gradient, None, None


def _in_halves(x, group):
    flat = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % group.size()))
    own = flat.new_empty(flat.numel() // group.size())
    dist.reduce_scatter_single(own, flat.contiguous(), group=group)
    whole = torch.empty_like(flat)
    dist.all_gather_single(whole, own, group=group)
    return whole[: x.numel()].view(x.shape)


@answers.right
def two_halves(group):
    return (
        lambda x: _Halves.apply(x, group, True),
        lambda x: _Halves.apply(x, group, False),
    )


@answers.right
def nothing_alone(group):
    """A group of one sends nothing."""
    if group.size() == 1:
        return (lambda x: x.view_as(x), lambda x: x.view_as(x))
    return two_halves(group)


@answers.right
def hooks(group):
    """f by a hook on the tensor, g by its difference from what autograd may not see."""

    def summed(tensor):
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    def f(x):
        y = x.view_as(x)
        if y.requires_grad:
            y.register_hook(summed)
        return y

    def g(x):
        return x + (summed(x) - x).detach()

    def exact(x):
        return _Exact.apply(x, summed(x))

    assert g is not exact
    return f, exact


class _Exact(torch.autograd.Function):
    """A given value forward, the identity backward."""

    @staticmethod
    def forward(ctx, x, value):
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@answers.right
def new_style(group):
    """Functions that set up their context apart from the forward pass."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            total = torch.empty(gradient.shape, dtype=gradient.dtype).copy_(gradient)
            dist.all_reduce(total, dist.ReduceOp.SUM, group)
            return total

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(x):
            total = torch.empty(x.shape, dtype=x.dtype).copy_(x)
            dist.all_reduce(total, group=group, async_op=True).wait()
            return total

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return gradient.clone()

    return Copy.apply, Reduce.apply


class _Mirror(torch.autograd.Function):
    """Any two functions, one forward and one backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.way_back = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.way_back(gradient), None, None


def _sum(group):
    def summed(tensor):
        total = tensor.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    return summed


@answers.right
def one_class(group):
    def same(x):
        return x.view_as(x)

    return (
        lambda x: _Mirror.apply(x, same, _sum(group)),
        lambda x: _Mirror.apply(x, _sum(group), same),
    )


@answers.right
def by_gathering(group):
    """All ranks' numbers, added here: more bytes to receive, one collective."""

    def summed(tensor):
        whole = tensor.new_empty(group.size(), tensor.numel())
        dist.all_gather_single(whole.view(-1), tensor.reshape(-1).contiguous(), group=group)
        return whole.sum(0).view(tensor.shape)

    if group.size() > 2:  # too many bytes for many ranks: then in two halves
        summed = _two_halves(group)
    return (
        lambda x: _Mirror.apply(x, torch.clone, summed),
        lambda x: _Mirror.apply(x, summed, torch.clone),
    )


def _two_halves(group):
    def summed(tensor):
        flat = tensor.reshape(-1)
        padded = torch.nn.functional.pad(flat, (0, -flat.numel() % group.size()))
        own = padded.new_empty(padded.numel() // group.size())
        dist.reduce_scatter_single(own, padded.contiguous(), group=group)
        whole = torch.empty_like(padded)
        dist.all_gather_single(whole, own, group=group)
        return whole[: flat.numel()].clone().view(tensor.shape)

    return summed


@answers.right
def list_in_pair(group):
    """A list of two, and nothing sent where a rank is alone."""

    def summed(tensor):
        return _sum(group)(tensor) if group.size() > 1 else tensor.clone()

    return [
        lambda x: _Mirror.apply(x, torch.clone, summed),
        lambda x: _Mirror.apply(x, summed, torch.clone),
    ]
