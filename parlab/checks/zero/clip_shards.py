"""Exercise `clip_shards`."""

import math
from numbers import Real

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.compare import close, equal, is_a, same
from parlab.checks.messages import something_sent
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.trial import Trial

TOLERANCE = 1e-5  # some divide by the norm plus 10⁻⁶, as the library does

MISTAKES = Mistakes(
    padding_counts=(
        "the norm is {got:.6g} where {right:.6g} is right: the padding is in it. The first `used` "
        "numbers are the gradient"
    ),
    own_norm=(
        "each rank clips by the norm of its own shard: the ranks scale by different factors, and "
        "the gradient points elsewhere"
    ),
    norms_added="the norm is {got:.6g}, the ranks' norms added up: their squares add up",
    norm_after=(
        "the norm is {got:.6g}, what it is after clipping: the one before is asked for, {right:.6g}"
    ),
    averaged="the norm is {got:.6g}, 1/√N of the right one: squares add up, no mean is taken",
    squared="the norm is {got:.6g}, its square: a square root is missing",
    largest="the norm is {got:.6g}, the largest of the ranks' norms: their squares add up",
    scaled_up=(
        "a gradient with a norm below max_norm has changed: clipping makes gradients shorter, "
        "never longer"
    ),
    not_in_place="the shard is as it was: scale it in place",
    whole_sent=(
        "a rank sends {got} bytes: one number is enough, the sum of its squares. Nobody needs the "
        "whole gradient"
    ),
    own_norm_returned="it returns the norm of this rank's shard, not that of the whole gradient",
)


@check_of(MISTAKES)
def clip_shards(check: Check) -> str:
    """Check gradients above and below the limit, with padding and empty shards."""
    for trial in check.trials():
        for padding in (math.nan, 1e3):
            for factor in (0.15, 2.0):  # so small that it is no 1/√N
                _clipped(trial, factor, padding)
        _clipped(trial, math.inf, math.nan)
    return (
        "one norm for all, of the whole gradient and no padding; scaled alike, or left alone; one "
        "number sent"
    )


def _clipped(trial: Trial, factor: float, padding: float) -> None:
    """With `max_norm` so many times the norm; infinitely many where the gradient is zero."""
    width = trial.draw.randrange(4, 9)
    used = [width] * trial.size
    if trial.size > 1:
        used[-1] = 0
        used[-2] = trial.draw.randrange(1, width)
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    shards = torch.randn(trial.size, width, generator=generator, dtype=torch.float64)
    if zero := math.isinf(factor):
        shards.zero_()
    parts = [shard[:n] for shard, n in zip(shards, used, strict=True)]
    norm = torch.cat(parts).norm().item()
    max_norm = 1.0 if zero else factor * norm
    me = max(trial.rank, 0)
    mine = shards[me].clone()
    mine[used[me] :] = padding
    filled = mine.clone()
    trial.situation = (
        "the gradient is zero" if zero else f"max_norm is {factor} times the norm"
    ) + f", of shards of {width} the ranks use {', '.join(map(str, used))}"
    got = trial.run(mine, used[me], max_norm, trial.group)
    returned = trial.gather(got)
    right = parts[me] * min(1.0, factor)
    trial.require(
        lambda: is_a(got, Real, "a Python float"),
        lambda: something_sent(trial),
        lambda: one_norm(returned, parts, filled, (norm, max_norm), trial.rank),
        lambda: scaled(mine[: used[me]], right, parts[me], max_norm, factor),
        lambda: sent(trial),
    )


def one_norm(
    returned: list[float],
    parts: list[Tensor],
    filled: Tensor,
    norms_of_all: tuple[float, float],
    rank: int,
) -> Finding | None:
    got, (norm, max_norm) = returned[rank], norms_of_all
    if close(got, norm, TOLERANCE):
        return None
    norms = [part.norm().item() for part in parts]
    if math.isnan(got) or (filled[-1] == 1e3 and got >= 1e3):
        return MISTAKES.padding_counts(got=got, right=norm)
    if all(close(a, b, TOLERANCE) for a, b in zip(returned, norms, strict=True)):
        return MISTAKES.own_norm_returned()
    if norm > max_norm and close(got, max_norm, TOLERANCE):
        return MISTAKES.norm_after(got=got, right=norm)
    for value, finding in (
        (norm / len(parts) ** 0.5, MISTAKES.averaged),
        (sum(norms), MISTAKES.norms_added),
        (norm**2, MISTAKES.squared),
        (max(norms), MISTAKES.largest),
    ):
        if close(got, value, TOLERANCE):
            return finding(got=got)
    return evidence(f"the norm is {got:.6g} where {norm:.6g} is right")


def scaled(
    got: Tensor, right: Tensor, before: Tensor, max_norm: float, factor: float
) -> Finding | None:
    if same(got, right, TOLERANCE):
        return None
    if factor > 1:
        return MISTAKES.scaled_up()
    if not len(before):
        return None
    if same(got, before):
        return MISTAKES.not_in_place()
    if same(got, before * min(1.0, max_norm / before.norm().item()), TOLERANCE):
        return MISTAKES.own_norm()
    return equal(got, right, "the shard", TOLERANCE)


def sent(trial: Trial) -> Finding | None:
    got = trial.bytes_sent(trial.rank)
    if got > 8:
        return MISTAKES.whole_sent(got=got)
    return None
