"""Answers to `vocabulary_cross_entropy`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("vocabulary_cross_entropy")
f_and_g = answers.reference("f_and_g")

HIGHEST = "    highest = scores"
MAX = "    dist.all_reduce(highest, dist.ReduceOp.MAX, group)\n"
SHIFT = "scores - highest.unsqueeze(-1)"
TOTAL = "g(shifted.exp().sum(dim=-1))"

answers.edit("max_not_shared", "own_maximum", (MAX, ""))
answers.edit(
    "not_finite", "one_maximum", ("amax(dim=-1)", "amax().expand(scores.shape[:-1]).clone()")
)
answers.edit(
    "not_finite",
    "average_of_the_maxima",
    (MAX, "    dist.all_reduce(highest, group=group)\n    highest /= group.size()\n"),
)
answers.edit(None, "not_masked", ("own * inside", "own"))
answers.edit("target_not_summed", "own_targets", ("g(own * inside)", "own * inside"))
answers.edit(
    None,
    "four_collectives",
    (MAX, MAX + "    dist.all_reduce(torch.zeros(1), group=group)\n"),
    says="three collectives",
)
answers.edit(
    "sent_backward",
    "asks_backward",
    (
        HIGHEST,
        "    scores.register_hook(lambda g: dist.all_reduce(torch.ones(1), group=group))\n"
        + HIGHEST,
    ),
)
answers.edit("wrong_shape", "token_by_token", (".mean()", ""))
answers.edit("wrong_type", "a_number", (".mean()", ".mean().item()"))
answers.edit(
    None,
    "sum_without_gradient",
    (TOTAL, "shifted.detach().exp().sum(dim=-1)\n    dist.all_reduce(total, group=group)"),
)
answers.edit(None, "target_without_gradient", ("g(own * inside)", "g((own * inside).detach())"))
answers.edit(
    None, "without_graph", (SHIFT, f"scores.detach() - {SHIFT.partition(' - ')[2]}"), says="is None"
)
answers.edit("default_group", "default_group", ("dist.ReduceOp.MAX, group)", "dist.ReduceOp.MAX)"))
answers.edit(
    "argument_changed",
    "scores_shifted",
    (SHIFT, "scores.detach().sub_(highest.unsqueeze(-1)) + 0 * scores"),
)


@answers.wrong("logits_gathered")
def gathered(scores, targets, group):
    parts = [torch.empty_like(scores) for _ in range(group.size())]
    dist.all_gather(parts, scores.detach().contiguous(), group=group)
    parts[group.rank()] = scores
    return F.cross_entropy(torch.cat(parts, dim=-1).flatten(0, -2), targets.flatten())


@answers.right
def log_sum_exp_of_each(scores, targets, group):
    """Each rank's log-sum-exp, combined with their maximum."""
    _, g = f_and_g(group)
    own = scores.logsumexp(-1)
    highest = own.detach().clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    whole = g((own - highest).exp()).log() + highest
    first = group.rank() * scores.shape[-1]
    is_own = (targets >= first) & (targets < first + scores.shape[-1])
    picked = scores.gather(-1, (targets - first).clamp(0, scores.shape[-1] - 1)[..., None])[..., 0]
    return (whole - g(torch.where(is_own, picked, torch.zeros_like(picked)))).mean()


@answers.right
def both_sums_at_once(scores, targets, group):
    """The two sums in one all-reduce."""
    _, g = f_and_g(group)
    highest = scores.detach().max(dim=-1).values
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    shifted = scores - highest[..., None]
    local = targets - group.rank() * scores.shape[-1]
    inside = (local >= 0) & (local < scores.shape[-1])
    picked = shifted.gather(-1, torch.where(inside, local, 0)[..., None])[..., 0] * inside
    total, target = g(torch.stack([shifted.exp().sum(-1), picked]))
    return (total.log() - target).mean()


class Entropy(torch.autograd.Function):
    """Written out: softmax less the one-hot of the target."""

    @staticmethod
    def forward(ctx, scores, targets, group):
        highest = scores.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        exp = (scores - highest[..., None]).exp()
        total = exp.sum(-1)
        dist.all_reduce(total, group=group)
        count = scores.shape[-1]
        hot = torch.arange(count) == (targets - group.rank() * count)[..., None]
        target = (scores * hot).sum(-1)
        dist.all_reduce(target, group=group)
        ctx.save_for_backward((exp / total[..., None] - hot.to(exp.dtype)) / targets.numel())
        return (total.log() + highest - target).mean()

    @staticmethod
    def backward(ctx, gradient):
        (own,) = ctx.saved_tensors
        return own * gradient, None, None


@answers.right
def written_out(scores, targets, group):
    return Entropy.apply(scores, targets, group)


@answers.right
def maxima_gathered(scores, targets, group):
    """All ranks' maxima come to all: N numbers a token."""
    _, g = f_and_g(group)
    own = scores.detach().amax(-1)
    every = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(every, own, group=group)
    highest = torch.stack(every).amax(0)
    total = g((scores - highest[..., None]).exp().sum(-1))
    hot = F.one_hot(targets, scores.shape[-1] * group.size()).chunk(group.size(), -1)[group.rank()]
    return (highest + total.log() - g((scores * hot).sum(-1))).mean()


@answers.right
def mean_by_hand(scores, targets, group):
    """Flat, and the mean as a sum over a count."""
    _, g = f_and_g(group)
    flat, wanted = scores.reshape(-1, scores.shape[-1]), targets.reshape(-1)
    highest = flat.detach().amax(1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    total = g(torch.exp(flat - highest[:, None]).sum(1))
    local = wanted - group.rank() * flat.shape[1]
    rows = torch.where((local >= 0) & (local < flat.shape[1]))[0]
    picked = flat.new_zeros(len(wanted)).index_put((rows,), flat[rows, local[rows]])
    return (torch.log(total) + highest - g(picked)).sum() / len(wanted)
