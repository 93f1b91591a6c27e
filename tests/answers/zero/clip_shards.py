"""Answers to `clip_shards`."""

import math

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("clip_shards")

SQUARES = "squares = gradient[:used].square().sum()"
REDUCE = "dist.all_reduce(squares, group=group)"
SCALE = "gradient[:used] *= max_norm / norm"
RETURN = "return norm"

answers.edit(
    "padding_counts", "padding_in_the_norm", ("gradient[:used].square()", "gradient.square()")
)
answers.edit("nothing_sent", "own_shard_only", (REDUCE, "pass"))
answers.edit(
    "norms_added",
    "norms_added",
    (SQUARES, "squares = gradient[:used].norm()"),
    ("squares.sqrt()", "squares"),
)
answers.edit("squared", "no_root", ("squares.sqrt()", "squares"))
answers.edit(
    "largest", "largest", (REDUCE, "dist.all_reduce(squares, op=dist.ReduceOp.MAX, group=group)")
)
answers.edit("scaled_up", "scaled_always", ("if norm > max_norm:", "if True:"))
answers.edit("not_in_place", "a_new_tensor", (SCALE, "gradient = gradient * (max_norm / norm)"))
answers.edit(
    "own_norm",
    "own_factor",
    (SCALE, "gradient[:used] *= (max_norm / gradient[:used].norm()).clamp(max=1)"),
)
answers.edit(
    "own_norm_returned",
    "own_norm_back",
    (SQUARES, "own = gradient[:used].norm().item()\n    " + SQUARES),
    (RETURN, "return own"),
)
answers.edit("norm_after", "norm_after", (RETURN, "return min(norm, max_norm)"))
answers.edit(
    "raises",
    "zero_divided",
    ("if norm > max_norm:\n        " + SCALE, "gradient[:used] *= min(1.0, max_norm / norm)"),
)
answers.edit("default_group", "default_group", (REDUCE, "dist.all_reduce(squares)"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit("wrong_type", "a_tensor", (RETURN, "return torch.tensor(norm)"))


@answers.wrong("whole_sent")
def gathers_everything(gradient, used, max_norm, group):
    shard = gradient.clone()
    shard[used:] = 0
    whole = shard.new_empty(len(shard) * group.size())
    dist.all_gather_single(whole, shard, group=group)
    norm = whole.norm().item()
    if norm > max_norm:
        gradient *= max_norm / norm
    return norm


@answers.wrong("averaged")
def mean_of_squares(gradient, used, max_norm, group):
    squares = gradient[:used].square().sum() / group.size()
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt().item()
    if norm > max_norm:
        gradient[:used] *= max_norm / norm
    return norm


@answers.wrong(None)
def each_number_cut(gradient, used, max_norm, group):
    squares = gradient[:used].square().sum()
    dist.all_reduce(squares, group=group)
    gradient[:used].clamp_(-max_norm, max_norm)
    return squares.sqrt().item()


@answers.wrong("does_not_end")
def nothing_to_add(gradient, used, max_norm, group):
    if not used:
        return 0.0
    return answers.reference()(gradient, used, max_norm, group)


@answers.right
def in_float64(gradient, used, max_norm, group):
    squares = torch.linalg.vector_norm(gradient[:used], dtype=torch.float64) ** 2
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt().item()
    if norm > max_norm:
        gradient.mul_(max_norm / norm)
    return norm


@answers.right
def as_the_library_scales(gradient, used, max_norm, group):
    own = gradient[:used]
    squares = (own**2).sum()
    dist.all_reduce(squares, group=group)
    norm = float(squares) ** 0.5
    own.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


@answers.right
def padding_zeroed(gradient, used, max_norm, group):
    gradient[used:] = 0
    squares = torch.dot(gradient, gradient)
    dist.all_reduce(squares, group=group)
    norm = math.sqrt(squares.item())
    if norm > max_norm:
        gradient.mul_(max_norm / norm)
    return norm


@answers.right
def norm_squared(gradient, used, max_norm, group):
    total = gradient[:used].norm() ** 2
    work = dist.all_reduce(total, group=group, async_op=True)
    work.wait()
    norm = total.sqrt().item()
    gradient[:used].mul_(1.0 if norm <= max_norm else max_norm / norm)
    return norm


@answers.right
def gathers_the_norms(gradient, used, max_norm, group):
    own = torch.linalg.vector_norm(gradient[:used]).reshape(1)
    norms = own.new_empty(group.size())
    dist.all_gather_single(norms, own, group=group)
    norm = norms.norm().item()
    if norm > max_norm:
        gradient[:used] *= max_norm / norm
    return norm


@answers.right
def scales_the_padding_too(gradient, used, max_norm, group):
    squares = gradient[:used].pow(2).sum()
    dist.all_reduce(squares, dist.ReduceOp.SUM, group)
    norm = squares.sqrt()
    gradient.mul_((max_norm / norm).clamp(max=1.0))
    return norm.item()
