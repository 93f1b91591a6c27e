"""Answers to `zero_step`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("zero_step")

REDUCE = "    dist.reduce_scatter_single(gradient, adam.gradient, group=dp)\n"
MEAN = "    gradient /= dp.size()\n"
NORM = '    norm = gradient_norm(adam.parts, adam.copies, groups["all"])\n'
CLIP = """\
    if norm > max_norm:
        gradient *= max_norm / norm
"""
STEP = "    adam.optimizer.step()\n"
GATHER = "    dist.all_gather_single(adam.flat, adam.shard.detach(), group=dp)\n"

answers.edit("summed", "sum", (MEAN, ""))
answers.edit(None, "norm_first", (REDUCE + MEAN, ""), (NORM, NORM + REDUCE + MEAN))
answers.edit(None, "norm_over_tensor_parallel", ('groups["all"]', 'groups["tp"]'))
answers.edit(None, "own_norm", (NORM, "    norm = gradient.norm()\n"))
answers.edit("copies_ignored", "copies_ignored", ("adam.copies", "[1] * len(adam.parts)"))
answers.edit(None, "clipped_norm", (
    "    return norm\n", "    return norm.clamp(max=max_norm)\n"
))  # fmt: skip
answers.edit(None, "not_clipped", (CLIP, ""))
answers.edit("lengthened", "always_scaled", (CLIP, "    gradient *= max_norm / norm\n"))
answers.edit("lengthened", "clipped_from_1", (CLIP, CLIP.replace("norm > max_norm", "norm > 1")))
answers.edit("clipped_by_own_norm", "own_shard_clipped", (
    CLIP,
    "    own = gradient.norm()\n"
    "    gradient *= (max_norm / own).clamp(max=1.0)\n",
))  # fmt: skip
answers.edit("clipped_by_own_norm", "own_shard_decides", (
    CLIP, CLIP.replace("if norm", "if gradient.norm()")
))  # fmt: skip
answers.edit(None, "one_part", (
    "adam.parts, adam.copies", "[gradient], [1]"
), says="gradient_norm gets 1 gradients")  # fmt: skip
answers.edit("not_a_number", "zero_by_zero", (
    CLIP, "    gradient *= norm.clamp(max=max_norm) / norm\n"
))  # fmt: skip
answers.edit("not_gathered", "not_gathered", (GATHER, ""))
answers.edit("memory_replaced", "new_flat", (
    GATHER,
    "    adam.flat = torch.empty_like(adam.flat)\n" + GATHER,
))  # fmt: skip
answers.edit(None, "own_formula", (
    NORM,
    "    norm = sum(g.square().sum() / c for g, c in zip(adam.parts, adam.copies))\n"
    '    dist.all_reduce(norm, group=groups["all"])\n'
    "    norm = norm.sqrt()\n",
))  # fmt: skip
answers.edit(None, "no_step", (STEP, ""))
answers.edit(None, "two_steps", (STEP, STEP + STEP))
answers.edit("default_group", "default_group", (", group=dp)\n" + MEAN, ")\n" + MEAN))


@answers.wrong("sends_more")
def all_reduced(adam, groups, max_norm, gradient_norm):
    dist.all_reduce(adam.gradient, group=groups["dp"])
    adam.gradient /= groups["dp"].size()
    norm = gradient_norm(adam.parts, adam.copies, groups["all"])
    adam.shard.grad *= (max_norm / norm).clamp(max=1.0)
    adam.optimizer.step()
    dist.all_gather_single(adam.flat, adam.shard.detach(), group=groups["dp"])
    return norm


@answers.right
def like_torch(adam, groups, max_norm, gradient_norm):
    """The factor of `clip_grad_norm_`, which has a small number below."""
    group = groups["dp"]
    dist.reduce_scatter_tensor(adam.shard.grad, adam.gradient, group=group)
    adam.shard.grad.div_(group.size())
    norm = gradient_norm(adam.parts, adam.copies, groups["all"])
    adam.shard.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    adam.optimizer.step()
    dist.all_gather_into_tensor(adam.flat, adam.shard.data, group=group)
    return norm


@answers.right
def lists(adam, groups, max_norm, gradient_norm):
    """Lists of parts instead of one tensor; nothing is sent if there is one replica."""
    dp = groups["dp"]
    if dp.size() > 1:
        room = torch.empty_like(adam.shard)
        dist.reduce_scatter(room.detach(), list(adam.gradient.chunk(dp.size())), group=dp)
        adam.shard.grad.copy_(room.detach() / dp.size())
    norm = gradient_norm(adam.parts, adam.copies, groups["all"])
    factor = 1.0 if float(norm) <= max_norm else max_norm / float(norm)
    adam.shard.grad *= factor
    adam.optimizer.step()
    if dp.size() > 1:
        dist.all_gather(list(adam.flat.chunk(dp.size())), adam.shard.detach(), group=dp)
    return norm


@answers.right
def started_early(adam, groups, max_norm, gradient_norm):
    work = dist.reduce_scatter_single(
        adam.shard.grad, adam.gradient, group=groups["dp"], async_op=True
    )
    work.wait()
    for part in adam.parts:
        part /= groups["dp"].size()
    norm = gradient_norm(adam.parts, adam.copies, groups["all"])
    if norm > max_norm:
        for part in adam.parts:
            part *= max_norm / norm
    adam.optimizer.step()
    gathered = adam.shard.detach().clone()
    dist.all_gather_single(adam.flat, gathered, group=groups["dp"], async_op=True).wait()
    return norm
