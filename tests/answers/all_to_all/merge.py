"""Answers to `merge`."""

import torch
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("merge")

HIGHEST = "torch.maximum(lse_1, lse_2).detach().masked_fill(nothing, 0)"
WEIGHTS = "(lse_1 - highest).exp(), (lse_2 - highest).exp()"
OUT = "weight_1.unsqueeze(-1) * out_1 + weight_2.unsqueeze(-1) * out_2"
LSE = "(highest + total.log()).masked_fill(nothing, -torch.inf)"
RETURN = "out / total.unsqueeze(-1), lse"

answers.edit("no_maximum", "without_maximum", (HIGHEST, "torch.zeros_like(lse_1)"))
answers.edit(
    "no_maximum",
    "one_for_all",
    (HIGHEST, "torch.maximum(lse_1, lse_2).max().detach().expand_as(lse_1)"),
)
answers.edit("no_key", "infinite_minus_infinite", (".detach().masked_fill(nothing, 0)", ""))
answers.edit("not_weighted", "half_each", (RETURN, "(out_1 + out_2) / 2, lse"))
answers.edit(None, "lse_maximum", (LSE, "torch.maximum(lse_1, lse_2)"))
answers.edit(None, "no_key_is_zero", (".masked_fill(nothing, -torch.inf)", ""))
answers.edit(
    None,
    "lses_detached",
    (OUT, "weight_1.detach().unsqueeze(-1) * out_1 + weight_2.detach().unsqueeze(-1) * out_2"),
    (RETURN, "out / total.detach().unsqueeze(-1), lse"),
)
answers.edit(None, "total_too", (RETURN, RETURN + ", total"), says="it returns 3 values")
answers.edit("wrong_type", "output_alone", (RETURN, "out / total.unsqueeze(-1)"))
answers.edit("raises", "in_place", (WEIGHTS, "lse_1.sub_(highest).exp(), (lse_2 - highest).exp()"))


@answers.wrong(None, says="is None")
def without_a_graph(*given):
    with torch.no_grad():
        return answers.reference()(*given)


@answers.wrong("no_key")
def by_logaddexp(out_1, lse_1, out_2, lse_2):
    """The gradient of logaddexp is NaN if both are −inf."""
    lse = torch.logaddexp(lse_1, lse_2)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    weight_1, weight_2 = (lse_1 - safe).exp(), (lse_2 - safe).exp()
    return weight_1[..., None] * out_1 + weight_2[..., None] * out_2, lse


@answers.right
def by_softmax(out_1, lse_1, out_2, lse_2):
    lses = torch.stack([lse_1, lse_2])
    nothing = (lses == -torch.inf).all(0)
    lses = lses.masked_fill(nothing, 0)
    weights = lses.softmax(0)[..., None]
    out = (weights * torch.stack([out_1, out_2])).sum(0)
    return out, lses.logsumexp(0).masked_fill(nothing, -torch.inf)


@answers.right
def by_sigmoid(out_1, lse_1, out_2, lse_2):
    """As flash attention's ring does; a difference of infinities is replaced by the larger one."""
    none_1, none_2 = lse_1 == -torch.inf, lse_2 == -torch.inf
    ours, other = lse_1.masked_fill(none_1, 0), lse_2.masked_fill(none_2, 0)
    weight = torch.sigmoid(other - ours).masked_fill(none_1, 1).masked_fill(none_2, 0).unsqueeze(-1)
    both = ours - F.logsigmoid(ours - other)
    lse = torch.where(none_1, lse_2, torch.where(none_2, lse_1, both))
    return out_1 * (1 - weight) + out_2 * weight, lse


@answers.right
def by_a_large_number(out_1, lse_1, out_2, lse_2):
    """Replaces −inf by a number that is far below every other one."""
    nothing = (lse_1 == -torch.inf) & (lse_2 == -torch.inf)
    finite_1, finite_2 = (x.masked_fill(x == -torch.inf, -1e30) for x in (lse_1, lse_2))
    lse = torch.logaddexp(finite_1, finite_2)
    weights = [(x - lse).exp().unsqueeze(-1) for x in (finite_1, finite_2)]
    return weights[0] * out_1 + weights[1] * out_2, lse.masked_fill(nothing, -torch.inf)


@answers.right
def by_logsumexp(out_1, lse_1, out_2, lse_2):
    """Weights from the merged log-sum, whose last digits are lost for large ones."""
    nothing = (lse_1 == -torch.inf) & (lse_2 == -torch.inf)
    lse_1, lse_2 = lse_1.masked_fill(nothing, 0), lse_2.masked_fill(nothing, 0)
    lse = torch.stack([lse_1, lse_2]).logsumexp(0)
    out = (lse_1 - lse).exp()[..., None] * out_1 + (lse_2 - lse).exp()[..., None] * out_2
    return [out, lse.masked_fill(nothing, -torch.inf)]


class Merge(torch.autograd.Function):
    """With a backward pass of its own."""

    @staticmethod
    def forward(ctx, out_1, lse_1, out_2, lse_2):
        out, lse = answers.reference()(out_1, lse_1, out_2, lse_2)
        weights = [(x - lse).exp().nan_to_num() for x in (lse_1, lse_2)]
        ctx.save_for_backward(out_1, out_2, out, *weights)
        return out, lse

    @staticmethod
    def backward(ctx, of_out, of_lse):
        out_1, out_2, out, *weights = ctx.saved_tensors
        found = []
        for part, weight in zip((out_1, out_2), weights, strict=True):
            found.append(weight[..., None] * of_out)
            found.append(weight * (of_lse + (of_out * (part - out)).sum(-1)))
        return tuple(found)


@answers.right
def own_backward(*given):
    return Merge.apply(*given)


answers.right_edit("maximum_with_a_gradient", ("lse_2).detach()", "lse_2)"))
