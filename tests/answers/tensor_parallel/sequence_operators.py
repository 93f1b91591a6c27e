"""Answers to `sequence_operators`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from parlab.answers import Answers

answers = Answers("sequence_operators")
reference = answers.reference()

REFUSE = "if x.shape[1] % group.size():"
OWN = "own = scattered(gradient @ weight, ctx.group)"
WEIGHT = "of_weight = gradient.flatten(0, 1).T @ whole.flatten(0, 1)"
SAVE = "ctx.save_for_backward(x, weight)"
FORWARD = "return F.linear(gathered(x, group), weight, bias)"

answers.edit(
    "not_gathered_again",
    "whole_on_ctx",
    (FORWARD, "ctx.whole = gathered(x, group)\n        return F.linear(ctx.whole, weight, bias)"),
    ("whole = gathered(x, ctx.group)", "whole = ctx.whole"),
)
answers.edit(
    None,
    "size_not_named",
    ("{x.shape[1]} tokens do not divide", "tokens do not divide"),
    says="does not name the size",
)
answers.edit("keeps_whole", "weight_copied", (SAVE, "ctx.save_for_backward(x, weight.clone())"))
answers.edit(
    "weights_summed",
    "weight_reduced",
    (
        WEIGHT,
        WEIGHT + "\n"
        "        parts = [torch.empty_like(of_weight) for _ in range(ctx.group.size())]\n"
        "        dist.all_gather(parts, of_weight, group=ctx.group)\n"
        "        of_weight = sum(parts)",
    ),
)
answers.edit(
    "scatter_not_summed",
    "sliced",
    (
        "return scattered(x, group)",
        "return x.chunk(group.size(), dim=1)[group.rank()].clone()",
    ),
)
answers.edit(
    "scatter_own_gradient",
    "zeros_elsewhere",
    (
        "return gathered(gradient, ctx.group), None",
        "n, r = ctx.group.size(), ctx.group.rank()\n"
        "        parts = [gradient * (i == r) for i in range(n)]\n"
        "        return torch.cat(parts, dim=1), None",
    ),
)
answers.edit(
    "scatter_gradient_times",
    "added_up",
    (
        "return gathered(gradient, ctx.group), None",
        "return gathered(gradient, ctx.group) * ctx.group.size(), None",
    ),
)
answers.edit(
    "gather_not_summed",
    "own_slice",
    (
        OWN,
        "own = (gradient @ weight).chunk(ctx.group.size(), dim=1)[ctx.group.rank()]",
    ),
)
answers.edit(
    "weight_of_own_part",
    "own_weight",
    (
        WEIGHT,
        "mine = gradient.chunk(ctx.group.size(), dim=1)[ctx.group.rank()]\n"
        "        of_weight = mine.flatten(0, 1).T @ x.flatten(0, 1)",
    ),
)
answers.edit(
    "keeps_whole",
    "keeps_whole",
    (
        SAVE,
        "whole = gathered(x, group)\n        ctx.save_for_backward(x, weight, whole)",
    ),
    (
        FORWARD,
        "return F.linear(whole, weight, bias)",
    ),
    (
        "x, weight = ctx.saved_tensors\n        whole = gathered(x, ctx.group)",
        "x, weight, whole = ctx.saved_tensors",
    ),
)
answers.edit(
    "all_reduced",
    "all_reduced",
    (
        OWN,
        "total = (gradient @ weight).contiguous()\n"
        "        dist.all_reduce(total, group=ctx.group)\n"
        "        own = total.chunk(ctx.group.size(), dim=1)[ctx.group.rank()]",
    ),
)
answers.edit(
    "not_refused",
    "not_refused",
    (
        REFUSE,
        "if False:",
    ),
    (
        "return scattered(x, group)",
        "fits = x.shape[1] // group.size() * group.size()\n"
        "        return scattered(x[:, :fits], group)",
    ),
)
answers.edit(
    None,
    "batch_by_batch",
    (
        "return parts.movedim(0, 1).flatten(1, 2)",
        "return parts.flatten(0, 1).reshape(x.shape[0], -1, x.shape[2])",
    ),
)
answers.edit(
    None,
    "bias_without_gradient",
    (
        "gradient.sum(dim=(0, 1)) if ctx.has_bias else None",
        "None",
    ),
)
answers.edit(
    None,
    "bias_summed_over_features",
    (
        "gradient.sum(dim=(0, 1)) if",
        "gradient.sum(dim=0).mean(dim=0) if",
    ),
)


def _gather(x, group):
    parts = [torch.empty_like(x.contiguous()) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def _scatter(x, group):
    parts = [p.contiguous() for p in x.chunk(group.size(), dim=1)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        if x.size(1) % group.size() != 0:
            raise ValueError(f"{x.size(1)} by {group.size()}")
        return _scatter(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _gather(gradient, ctx.group), None


@answers.right
def with_lists(group):
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            return F.linear(_gather(x, group), weight, bias)

        @staticmethod
        def backward(ctx, gradient):
            x, weight, bias = ctx.saved_tensors
            whole = _gather(x, group)
            of_bias = None if bias is None else gradient.flatten(0, 1).sum(0)
            return (
                _scatter(gradient @ weight, group),
                torch.einsum("bso,bsi->oi", gradient, whole),
                of_bias,
            )

    return Linear.apply, lambda x: _Scatter.apply(x, group)


@answers.right
def recomputed(group):
    """The product once more in the backward pass, by autograd itself."""

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            with torch.no_grad():
                return F.linear(_gather(x, group), weight, bias)

        @staticmethod
        def backward(ctx, gradient):
            x, weight, bias = ctx.saved_tensors
            whole = _gather(x, group).requires_grad_()
            leaves = [t.detach().requires_grad_() for t in (weight, bias) if t is not None]
            with torch.enable_grad():
                y = F.linear(whole, *leaves)
            of_x, *others = torch.autograd.grad(y, [whole, *leaves], gradient)
            return _scatter(of_x, group), others[0], others[1] if bias is not None else None

    return Linear.apply, lambda x: _Scatter.apply(x, group)


@answers.right
def started_and_awaited(group):
    """The gather goes on beside the product that does not need it."""

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.has_bias = bias is not None
            ctx.save_for_backward(x, weight)
            return F.linear(_gather(x, group), weight, bias)

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            parts = x.new_empty(group.size(), *x.shape)
            work = dist.all_gather_single(parts, x.contiguous(), group=group, async_op=True)
            of_whole = gradient @ weight
            work.wait()
            whole = torch.cat(list(parts), dim=1)
            own = _scatter(of_whole, group)
            of_weight = torch.tensordot(gradient, whole, dims=([0, 1], [0, 1]))
            return own, of_weight, gradient.sum((0, 1)) if ctx.has_bias else None

    return Linear.apply, reference(group)[1]


@answers.right
def sequence_first(group):
    """Everything in (seq, batch, h), where torch's collectives do it."""

    def gathered(x):
        whole = x.new_empty(group.size() * x.shape[1], x.shape[0], x.shape[2])
        dist.all_gather_single(whole, x.transpose(0, 1).contiguous(), group=group)
        return whole.transpose(0, 1)

    def scattered(x):
        own = x.new_empty(x.shape[1] // group.size(), x.shape[0], x.shape[2])
        dist.reduce_scatter_single(own, x.transpose(0, 1).contiguous(), group=group)
        return own.transpose(0, 1)

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.shape[1] % group.size():
                raise ValueError(f"a sequence of {x.shape[1]} does not divide")
            return scattered(x)

        @staticmethod
        def backward(ctx, gradient):
            return gathered(gradient)

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            return F.linear(gathered(x), weight, bias)

        @staticmethod
        def backward(ctx, gradient):
            x, weight, bias = ctx.saved_tensors
            of_weight = gradient.reshape(-1, len(weight)).T @ gathered(x).reshape(-1, x.shape[-1])
            of_bias = None if bias is None else gradient.reshape(-1, len(weight)).sum(0)
            return scattered(gradient @ weight), of_weight, of_bias

    return Linear.apply, Scatter.apply


@answers.right
def as_a_list(group):
    gather_linear, scatter = reference(group)
    return [lambda x, weight, bias=None: gather_linear(x, weight, bias), scatter]
