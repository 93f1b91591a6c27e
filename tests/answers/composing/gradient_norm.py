"""Answers to `gradient_norm`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("gradient_norm")

TERM = "gradient.float().square().sum() / c"
REDUCE = "dist.all_reduce(squares, group=group)"
ROOT = "return squares.sqrt()"
REFUSE = "if len(copies) != len(gradients) or any(c < 1 for c in copies):"

answers.edit("copies_unused", "copies_unused", (TERM, "gradient.float().square().sum()"))
answers.edit("norms_divided", "norms_divided", (TERM, f"{TERM}**2"))
answers.edit("norms_added", "root_too_early", (REDUCE, f"squares = squares.sqrt()\n    {REDUCE}"),
    (ROOT, "return squares"))  # fmt: skip
answers.edit("averaged", "averaged", (ROOT, "return (squares / group.size()).sqrt()"))
answers.edit(None, "never_zero", (ROOT, "return squares.sqrt() + 1e-6"), says="expected 0")
answers.edit(None, "never_zero_squares", (ROOT, "return (squares + 1e-12).sqrt()"),
    says="no gradients on any rank")  # fmt: skip
answers.edit(None, "norms_as_they_are", (TERM, "gradient.norm() ** 2 / c"))
answers.edit(None, "converted_too_late", (TERM, "gradient.square().float().sum() / c"))
answers.edit("nothing_sent", "own_norm", (REDUCE, "pass"))
answers.edit("default_group", "default_group", (REDUCE, "dist.all_reduce(squares)"))
answers.edit(
    None,
    "another_last_digit_on_each_rank",
    (ROOT, "return squares.sqrt() * (1 + 1e-6 * group.rank())"),
    says="expected one norm",
)
AGAIN = "dist.all_reduce(torch.ones(1), group=group)"
answers.edit("sends_more", "twice", (REDUCE, f"{REDUCE}\n    {AGAIN}"))
EARLY = "if not gradients:\n        return torch.zeros(())\n    "
answers.edit(
    "idle_left", "returns_early", ("squares = torch.zeros", f"{EARLY}squares = torch.zeros")
)
answers.edit("argument_changed", "in_place", (TERM, "gradient.square_().float().sum() / c"))
answers.edit("wrong_shape", "one_dimension", (ROOT, "return squares.sqrt().view(1)"))
answers.edit("wrong_dtype", "float64", (ROOT, "return squares.double().sqrt()"))
answers.edit("wrong_type", "a_float", (ROOT, "return squares.sqrt().item()"))
answers.edit("not_refused", "any_number_of_copies", (REFUSE, "if any(c < 1 for c in copies):"), (
    ", strict=True", ""))  # fmt: skip
answers.edit("not_refused", "any_copies", (REFUSE, "if len(copies) != len(gradients):"))
answers.edit(
    None,
    "refused_too_late",
    (REFUSE, f"{REFUSE}\n        {AGAIN}"),
    says="sends something before it refuses",
)
answers.edit(None, "not_named", ('f"copies is {copies}: give', '"give'))


@answers.wrong("sends_more")
def gathered(gradients, copies, group):
    """Gathers the sums instead of reducing them."""
    check(gradients, copies)
    own = sum((g.float().square().sum() / c for g, c in pairs(gradients, copies)), torch.zeros(()))
    every = torch.empty(group.size())
    dist.all_gather_single(every, own.view(1), group=group)
    return every.sum().sqrt()


@answers.wrong("raises")
def stacked(gradients, copies, group):
    """Cannot stack an empty list."""
    check(gradients, copies)
    squares = torch.stack([g.float().square().sum() / c for g, c in pairs(gradients, copies)]).sum()
    dist.all_reduce(squares, group=group)
    return squares.sqrt()


def check(gradients, copies):
    if len(gradients) != len(copies):
        raise ValueError(f"{len(copies)} copies for {len(gradients)} gradients")
    if copies and min(copies) < 1:
        raise ValueError(f"copies has {min(copies)}")


def pairs(gradients, copies):
    return zip(gradients, copies, strict=True)


@answers.right
def in_double(gradients, copies, group):
    """Adds in float64, which is one number, too."""
    check(gradients, copies)
    total = torch.zeros((), dtype=torch.float64)
    for g, c in pairs(gradients, copies):
        total += g.double().pow(2).sum() / c
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
    return total.sqrt().float()


@answers.right
def one_vector(gradients, copies, group):
    """Scales each gradient by the root of 1/c, and puts all into one vector."""
    check(gradients, copies)
    scaled = [g.float().flatten() / c**0.5 for g, c in pairs(gradients, copies)]
    norm = torch.cat([torch.zeros(1), *scaled]).norm()
    squares = norm * norm
    dist.all_reduce(squares, group=group, async_op=True).wait()
    return torch.sqrt(squares)


@answers.right
def alone_without_a_call(gradients, copies, group):
    check(gradients, copies)
    terms = [g.float().pow(2).sum().div(c) for g, c in pairs(gradients, copies)]
    squares = torch.stack(terms).sum() if terms else torch.tensor(0.0)
    if group.size() > 1:
        dist.all_reduce(squares, group=group)
    return squares.sqrt_()
