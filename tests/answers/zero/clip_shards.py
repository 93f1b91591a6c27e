"""Answers to `clip_shards`."""

import math

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("clip_shards")

SQUARES = "squares = gradient[:used].square().sum()"
REDUCE = "dist.all_reduce(squares, group=group)"
MAXIMUM = REDUCE.replace(")", ", op=dist.ReduceOp.MAX)")
ROOT, CONDITION = "squares.sqrt()", "if norm > max_norm:"
SCALE = "gradient[:used] *= max_norm / norm"
OWN_FACTOR = "gradient[:used] *= (max_norm / gradient[:used].norm()).clamp(max=1)"
RETURN = "return norm"

for mistake, name, *edits in (
    ("padding_counts", "padding_in_the_norm", SQUARES, SQUARES.replace("[:used]", "")),
    ("nothing_sent", "own_shard_only", REDUCE, "pass"),
    (
        "norms_added",
        "norms_added",
        SQUARES,
        SQUARES.replace("square().sum", "norm"),
        ROOT,
        ROOT[:7],
    ),
    (None, "no_root", ROOT, "squares"),
    (None, "largest", REDUCE, MAXIMUM),
    ("scaled_up", "scaled_always", CONDITION, "if True:"),
    ("not_in_place", "a_new_tensor", SCALE, "gradient = gradient * (max_norm / norm)"),
    ("own_norm", "own_factor", SCALE, OWN_FACTOR),
    (None, "norm_after", RETURN, "return min(norm, max_norm)"),
    ("raises", "zero_divided", CONDITION, "if max_norm / norm < 1:"),
    (None, "each_element_clamped", SCALE, "gradient[:used].clamp_(-max_norm, max_norm)"),
    ("default_group", "default_group", REDUCE, "dist.all_reduce(squares)"),
    ("returns_none", "no_return", RETURN, "pass"),
    ("does_not_end", "nothing_to_add", SQUARES, "if not used: return 0.0\n    " + SQUARES),
):
    answers.edit(mistake, name, *zip(edits[::2], edits[1::2], strict=True))


@answers.wrong(None, says="bytes")
def gathers_everything(gradient, used, max_norm, group):
    shard = gradient.clone()
    shard[used:] = 0
    whole = shard.new_empty(len(shard) * group.size())
    dist.all_gather_single(whole, shard, group=group)
    norm = whole.norm().item()
    if norm > max_norm:
        gradient *= max_norm / norm
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
    dist.all_reduce(squares, group=group, async_op=True).wait()
    norm = math.sqrt(squares.item())
    gradient.mul_(1.0 if norm <= max_norm else max_norm / norm)
    return norm


@answers.right
def norm_squared(gradient, used, max_norm, group):
    total = gradient[:used].norm() ** 2
    dist.all_reduce(total, group=group)
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
    squares = torch.linalg.vector_norm(gradient[:used], dtype=torch.float64) ** 2
    dist.all_reduce(squares, dist.ReduceOp.SUM, group)
    norm = squares.sqrt()
    gradient.mul_((max_norm / norm).clamp(max=1.0))
    return norm.item()
