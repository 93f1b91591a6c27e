"""Answers to `sequence_operators`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("sequence_operators")
reference = answers.reference()

REFUSE = "if x.shape[1] % group.size():"
ERROR = 'raise ValueError(f"{group.size()} ranks do not divide {x.shape[1]} tokens")'
OF_RANK = ".chunk(group.size(), dim=1)[group.rank()].clone()"
SCATTER = "return scattered(x, group)"
SCATTER_BACKWARD = "return gathered(gradient, ctx.group), None"
OWN = "own = scattered(gradient @ weight, ctx.group)"
WEIGHT = "of_weight = gradient.flatten(0, 1).T @ whole.flatten(0, 1)"
BIAS = "gradient.sum(dim=(0, 1)) if ctx.has_bias else None"
SAVE = "ctx.save_for_backward(x, weight)"
FORWARD = "return F.linear(gathered(x, group), weight, bias)"
AGAIN = "whole = gathered(x, ctx.group)"
SLICE = ".chunk(ctx.group.size(), dim=1)[ctx.group.rank()]"

answers.edit(
    "keeps_whole",
    "whole_on_ctx",
    (FORWARD, "ctx.whole = gathered(x, group)\n        return F.linear(ctx.whole, weight, bias)"),
    (AGAIN, "whole = ctx.whole"),
    says="does not gather",
)
answers.edit("keeps_whole", "weight_copied", (SAVE, "ctx.save_for_backward(x, weight.clone())"))
answers.edit(
    "keeps_whole",
    "keeps_whole",
    (SAVE, "whole = gathered(x, group)\n        ctx.save_for_backward(x, weight, whole)"),
    (FORWARD, "return F.linear(whole, weight, bias)"),
    (f"x, weight = ctx.saved_tensors\n        {AGAIN}", "x, weight, whole = ctx.saved_tensors"),
)
answers.edit("not_summed", "sliced", (SCATTER, f"return x{OF_RANK}"))
answers.edit(
    None,
    "zeros_elsewhere",
    (
        SCATTER_BACKWARD,
        "parts = [gradient * (i == ctx.group.rank()) for i in range(ctx.group.size())]\n"
        "        return torch.cat(parts, dim=1), None",
    ),
)
answers.edit(
    None,
    "gathered_and_added",
    (SCATTER, f"return gathered(x, group).unflatten(1, (group.size(), -1)).sum(1){OF_RANK}"),
    says="the forward pass sends all_gather",
)
answers.edit(None, "refused_without_a_text", (ERROR, "raise ValueError"), says="without a text")
answers.edit(None, "not_implemented", (ERROR, "raise NotImplementedError"), says="not done yet")
answers.edit("not_summed", "own_slice", (OWN, f"own = (gradient @ weight){SLICE}"))
answers.edit(
    None,
    "own_weight",
    (WEIGHT, f"of_weight = gradient{SLICE}.flatten(0, 1).T @ x.flatten(0, 1)"),
)
answers.edit(
    "all_reduced",
    "all_reduced",
    (
        OWN,
        "total = (gradient @ weight).contiguous()\n"
        f"        dist.all_reduce(total, group=ctx.group)\n        own = total{SLICE}",
    ),
)
answers.edit(
    "not_refused",
    "not_refused",
    (REFUSE, "if False:"),
    (SCATTER, "return scattered(x[:, : x.shape[1] // group.size() * group.size()], group)"),
)
answers.edit(None, "bias_without_gradient", (BIAS, "None"))
answers.edit(
    "raises",
    "view_of_the_gradient",
    (WEIGHT, WEIGHT.replace("gradient.flatten(0, 1)", "gradient.view(-1, len(weight))")),
)


def gather(x, group):
    parts = [torch.empty_like(x.contiguous()) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def scatter(x, group):
    parts = [p.contiguous() for p in x.chunk(group.size(), dim=1)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        if x.size(1) % group.size() != 0:
            raise ValueError(f"{x.size(1)} by {group.size()}")
        return scatter(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gather(gradient, ctx.group), None


class Linear(torch.autograd.Function):
    """A product whose backward pass is in `gradients(x, weight, bias, gradient, group)`."""

    @staticmethod
    def forward(ctx, x, weight, bias, group, gradients):
        ctx.save_for_backward(x, weight, bias)
        ctx.group, ctx.gradients = group, gradients
        return F.linear(gather(x, group), weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        return *ctx.gradients(*ctx.saved_tensors, gradient, ctx.group), None, None


def operators(group, gradients):
    return (
        lambda x, weight, bias=None: Linear.apply(x, weight, bias, group, gradients),
        lambda x: Scatter.apply(x, group),
    )


@answers.right
def with_lists(group):
    def gradients(x, weight, bias, gradient, group):
        of_weight = torch.einsum("bso,bsi->oi", gradient, gather(x, group))
        of_bias = None if bias is None else gradient.flatten(0, 1).sum(0)
        return scatter(gradient @ weight, group), of_weight, of_bias

    return operators(group, gradients)


@answers.right
def recomputed(group):
    """Autograd computes the product once more in the backward pass."""

    def gradients(x, weight, bias, gradient, group):
        whole = gather(x, group).requires_grad_()
        leaves = [t.detach().requires_grad_() for t in (weight, bias) if t is not None]
        with torch.enable_grad():
            y = F.linear(whole, *leaves)
        of_x, *others = torch.autograd.grad(y, [whole, *leaves], gradient)
        return scatter(of_x, group), *others, *[None] * (bias is None)

    return operators(group, gradients)


@answers.right
def started_and_awaited(group):
    """The gather overlaps with the product that does not need it."""

    def gradients(x, weight, bias, gradient, group):
        parts = x.new_empty(group.size(), *x.shape)
        work = dist.all_gather_single(parts, x.contiguous(), group=group, async_op=True)
        of_whole = gradient @ weight
        work.wait()
        whole = torch.cat(list(parts), dim=1)
        of_weight = torch.tensordot(gradient, whole, dims=([0, 1], [0, 1]))
        of_bias = None if bias is None else gradient.sum((0, 1))
        return scatter(of_whole, group), of_weight, of_bias

    return operators(group, gradients)


@answers.right
def sequence_first(group):
    """Uses (seq, batch, h), in which torch's collectives need no copies."""

    def gathered(x):
        whole = x.new_empty(group.size() * x.shape[1], x.shape[0], x.shape[2])
        dist.all_gather_single(whole, x.transpose(0, 1).contiguous(), group=group)
        return whole.transpose(0, 1)

    def gradients(x, weight, bias, gradient, group):
        own = x.new_empty(x.shape[1], x.shape[0], x.shape[2])
        of_x = (gradient @ weight).transpose(0, 1).contiguous()
        dist.reduce_scatter_single(own, of_x, group=group)
        flat = gradient.reshape(-1, len(weight))
        of_weight = flat.T @ gathered(x).reshape(-1, x.shape[-1])
        return own.transpose(0, 1), of_weight, None if bias is None else flat.sum(0)

    return operators(group, gradients)


@answers.right
def as_a_list(group):
    gather_linear, scatter = reference(group)
    return [lambda x, weight, bias=None: gather_linear(x, weight, bias), scatter]
