"""Answers to `balance_loss`."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("balance_loss")

CHOICES = "choices = torch.bincount(experts_Tk.flatten(), minlength=n_experts)"
REDUCE = "dist.all_reduce(total, group=group)"
GRADIENT = "sums = sums + group.size() * (own - own.detach())"
RETURN = "return n_experts * (choices / choices.sum()) @ (sums / tokens)"

for mistake, name, *edits in (
    (
        "own_tokens",
        "own_tokens_and_an_all_reduce",
        (REDUCE, "dist.all_reduce(total.clone(), group=group)"),
    ),
    ("own_tokens", "own_probabilities", (GRADIENT, "sums, tokens = own, len(probabilities_TE)")),
    (None, "factor_forgotten", (RETURN, RETURN.replace("n_experts * ", ""))),
    (
        None,
        "topk_again",
        (
            CHOICES,
            CHOICES.replace("experts_Tk", "probabilities_TE.topk(experts_Tk.shape[1]).indices"),
        ),
    ),
    ("no_gradient", "no_gradient", (GRADIENT, "")),
    ("not_times_ranks", "not_times_ranks", (GRADIENT, GRADIENT.replace("group.size() * ", ""))),
    (
        None,
        "gradient_of_f",
        (CHOICES, CHOICES + "\n    choices = choices + own - own.detach()"),
        (RETURN, RETURN.replace("choices /", "(choices + own - own.detach()) /")),
    ),
    ("wrong_shape", "shape_1", (RETURN, RETURN.replace("return ", "return (") + ").view(1)")),
    ("default_group", "default_group", (REDUCE, "dist.all_reduce(total)")),
):
    answers.edit(mistake, name, *edits)


def own_loss(probabilities, experts):
    n_experts = probabilities.shape[1]
    f = torch.bincount(experts.flatten(), minlength=n_experts) / experts.numel()
    return n_experts * (f * probabilities.mean(0)).sum()


@answers.wrong("own_tokens")
def losses_averaged(probabilities_TE, experts_Tk, group):
    loss = own_loss(probabilities_TE, experts_Tk)
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return total / group.size() + loss - loss.detach()


def means(probabilities, experts, group, divisor):
    """f and P as sums of the ranks' means over `divisor`."""
    n_experts = probabilities.shape[1]
    f = torch.bincount(experts.flatten(), minlength=n_experts) / max(experts.numel(), 1)
    p = probabilities.sum(0) / max(len(probabilities), 1)
    both = torch.stack([f.to(p.dtype), p.detach()])
    dist.all_reduce(both, group=group)
    f, total = both / divisor
    return n_experts * f @ (total + group.size() * (p - p.detach()) / divisor)


@answers.wrong("mean_of_means")
def mean_of_means(probabilities_TE, experts_Tk, group):
    return means(probabilities_TE, experts_Tk, group, group.size())


@answers.wrong("tokens_sent")
def every_token(probabilities_TE, experts_Tk, group):
    """All ranks get all tokens, padded to the same number."""
    sizes = torch.zeros(group.size(), dtype=torch.int64)
    sizes[group.rank()] = len(experts_Tk)
    dist.all_reduce(sizes, group=group)
    largest = int(sizes.max())

    def gathered(x):
        padded = F.pad(x.detach(), (0, 0, 0, largest - len(x)))
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return [part[:size] for part, size in zip(parts, sizes.tolist(), strict=True)]

    parts, experts = gathered(probabilities_TE), torch.cat(gathered(experts_Tk))
    own = probabilities_TE
    parts[group.rank()] = own.detach() + group.size() * (own - own.detach())
    return own_loss(torch.cat(parts), experts)


@answers.wrong("does_not_end")
def nothing_without_tokens(probabilities_TE, experts_Tk, group):
    if not len(experts_Tk):
        return probabilities_TE.sum()
    return answers.reference()(probabilities_TE, experts_Tk, group)


class Sum(torch.autograd.Function):
    """A sum over the ranks, forward and backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


@answers.right
def sums_both_ways(probabilities_TE, experts_Tk, group):
    """Three all-reduces forward, and one backward."""
    n_experts = probabilities_TE.shape[1]
    counts = F.one_hot(experts_Tk, n_experts).sum((0, 1))
    tokens = torch.tensor(float(len(experts_Tk)))
    for total in (counts, tokens):
        dist.all_reduce(total, group=group)
    p = Sum.apply(probabilities_TE.sum(0), group) / tokens
    return n_experts * ((counts / counts.sum()) * p).sum()


@answers.right
def library_function(probabilities_TE, experts_Tk, group):
    n_experts = probabilities_TE.shape[1]
    counts = torch.zeros(n_experts + 1, dtype=torch.int64)
    counts[:-1].index_add_(0, experts_Tk.reshape(-1), torch.ones_like(experts_Tk.reshape(-1)))
    counts[-1] = len(experts_Tk)
    dist.all_reduce(counts, group=group)
    *choices, tokens = counts.tolist()
    sums = torch.distributed.nn.functional.all_reduce(probabilities_TE.sum(0), group=group)
    f = probabilities_TE.new_tensor(choices) / sum(choices)
    return n_experts * torch.dot(f, sums) / tokens


@answers.right
def hook(probabilities_TE, experts_Tk, group):
    """The gradient is multiplied in a hook."""
    scaled = probabilities_TE.view_as(probabilities_TE)
    if scaled.requires_grad:
        scaled.register_hook(lambda gradient: gradient * group.size())
    (tokens, n_experts), k = scaled.shape, experts_Tk.shape[1]
    own = scaled.sum(0)
    total = torch.cat([own.detach(), experts_Tk.new_zeros(n_experts), own.new_tensor([tokens])])
    for expert in experts_Tk.flatten().tolist():
        total[n_experts + expert] += 1
    dist.all_reduce(total, group=group)
    f, t = total[n_experts:-1] / (total[-1] * k), total[-1]
    p = (total[:n_experts] - own.detach() + own) / t
    return (p * f).sum() * n_experts


answers.right_edit("float64", (RETURN, RETURN.replace("return ", "return (") + ").double()"))
