"""Answers to `average_gradients`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("average_gradients")

LOOP = "((shared, all_ranks), (own, replicas))"
NONE = """\
            if p.grad is None:
                p.grad = torch.zeros_like(p)
"""
REDUCE = "            dist.all_reduce(p.grad, group=ranks)\n"
DIVIDE = "            p.grad /= all_ranks.size()\n"

answers.edit("wrong_ranks", "one_group", (LOOP, "((shared, all_ranks), (own, all_ranks))"))
answers.edit("own_divided_by_replicas", "mean_of_replicas", ("all_ranks.size()", "ranks.size()"))
answers.edit("not_divided", "sums", (DIVIDE, ""))
answers.edit("wrong_ranks", "replicas_for_all", (LOOP, "((shared, replicas), (own, replicas))"))
answers.edit(None, "experts_left_out", (
    REDUCE, "            if ranks is all_ranks:\n    " + REDUCE
))  # fmt: skip
answers.edit("none_skipped", "none_skipped", (
    NONE, NONE.replace("p.grad = torch.zeros_like(p)", "continue")
))  # fmt: skip
answers.edit(
    "sends_more",
    "twice",
    (REDUCE, 2 * REDUCE + "            p.grad /= ranks.size()\n"),
)
answers.edit("raises", "none_forgotten", (NONE, ""))
answers.edit("default_group", "default_group", (REDUCE, REDUCE.replace(", group=ranks", "")))
answers.edit(
    "argument_changed", "parameters_too", (DIVIDE, DIVIDE + "            p.data -= p.grad\n")
)


@answers.wrong("wrong_type")
def none_stays(shared, own, all_ranks, replicas):
    """A rank without a gradient contributes zeros, but does not get the result."""
    for parameters, group in ((shared, all_ranks), (own, replicas)):
        for p in parameters:
            total = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(total, group=group)
            if p.grad is not None:
                p.grad = total / all_ranks.size()


def zeros_for_none(parameters):
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


@answers.right
def flat(shared, own, all_ranks, replicas):
    for parameters, group in ((own, replicas), (shared, all_ranks)):
        if not parameters:
            continue
        gradients = zeros_for_none(parameters)
        one = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(one, group=group)
        parts = one.div_(all_ranks.size()).split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.view(p.shape)


@answers.right
def all_at_once(shared, own, all_ranks, replicas):
    """Start all reductions, and then wait for them."""
    works = []
    for parameters, group in ((shared, all_ranks), (own, replicas)):
        for p, gradient in zip(parameters, zeros_for_none(parameters), strict=True):
            p.grad = gradient
            works.append(dist.all_reduce(p.grad, group=group, async_op=True))
    for work in works:
        work.wait()
    for p in [*shared, *own]:
        p.grad.div_(all_ranks.size())


@answers.right
def alone_without_a_call(shared, own, all_ranks, replicas):
    for parameters, group in ((shared, all_ranks), (own, replicas)):
        for p in parameters:
            if group.size() > 1:
                p.grad = zeros_for_none([p])[0]
                dist.all_reduce(p.grad, group=group)
            if p.grad is not None:
                p.grad = p.grad / all_ranks.size()
