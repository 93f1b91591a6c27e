"""Exercise `clip_shards`."""

import math
from numbers import Real

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close, explained, has_type
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed, the_only
from parlab.checks.base.trial import Trial

TOLERANCE = 1e-5  # some answers divide by the norm plus 10⁻⁶, as the library does

MISTAKES = Mistakes(
    padding_counts="the norm includes the padding: use only the first `used` elements",
    norms_added="the returned norm is the sum of the ranks' norms: add up their squares",
    own_norm=(
        "the shard is clipped by its own norm, so ranks scale by different factors: use the norm "
        "of the whole gradient"
    ),
    scaled_up="a gradient whose norm is below max_norm has changed: clipping never makes it longer",
    not_in_place="the shard has not changed: scale it in place",
)
CASES = {  # max_norm divided by the norm, and the padding's values
    "max_norm is 0.15 times the norm": (0.15, 1e3),  # so small that it is no 1/√N
    "max_norm is twice the norm": (2.0, 1e3),
    "max_norm is 0.15 times the norm, the padding is NaN": (0.15, math.nan),
    "max_norm is twice the norm, the padding is NaN": (2.0, math.nan),
    "the gradient is zero": (math.inf, math.nan),
}


@check_of(MISTAKES)
def clip_shards(check: Check) -> str:
    """Check gradients above and below the limit, with padding and empty shards."""
    for trial in check.trials():
        for _, (factor, padding) in trial.cases(CASES):
            _clip(trial, factor, padding)
    return (
        "one norm for all, of the whole gradient and no padding; scaled alike, or left alone; one "
        "number sent"
    )


def _clip(trial: Trial, factor: float, padding: float) -> None:
    """Check a gradient that ends before the last shard, and within the one before it."""
    width = trial.draw.randrange(4, 9)
    used = [width] * trial.size
    if trial.size > 1:
        used[-2:] = [trial.draw.randrange(1, width), 0]
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    shards = torch.randn(trial.size, width, generator=generator, dtype=torch.float64)
    if math.isinf(factor):
        shards.zero_()
    parts = [shard[:n] for shard, n in zip(shards, used, strict=True)]
    norm = torch.cat(parts).norm().item()
    max_norm = factor * norm if norm else 1.0
    rank = max(trial.rank, 0)
    local, given = parts[rank], torch.full((width,), padding, dtype=torch.float64)
    given[: used[rank]] = local
    got = trial.run(given, used[rank], max_norm, trial.group)
    sizes, padded = [part.norm().item() for part in parts], trial.size * width - sum(used)
    wrong_norms = {
        "padding_counts": math.hypot(norm, padding * padded**0.5),
        "norms_added": sum(sizes),
    }
    wrong_shards = {
        "not_in_place": local,
        "own_norm": local * (max_norm / local.norm()).clamp(max=1),
        "scaled_up": local * factor,
    }
    shard, right = given[: used[rank]], local * min(1.0, factor)
    trial.require(
        lambda: has_type(got, Real, "a Python float"),
        lambda: something_sent(trial),
        lambda: one_norm(got, norm, wrong_norms),
        lambda: explained(shard, right, wrong_shards, MISTAKES, "the shard", TOLERANCE),
        lambda: one_number_sent(trial),
    )


def one_norm(got: float, right: float, wrong: dict[str, float]) -> Finding | None:
    if close(got, right, TOLERANCE):
        return None
    wrong = {key: value for key, value in wrong.items() if not close(value, right, TOLERANCE)}
    mistake = the_only(MISTAKES, (key for key in wrong if close(got, wrong[key], TOLERANCE)))
    return mistake or observed(f"the norm is {got:.6g}, expected {right:.6g}")


def one_number_sent(trial: Trial) -> Finding | None:
    got = trial.bytes_sent(trial.rank)
    if got <= 8:
        return None
    return observed(f"a rank sends {got} bytes, expected at most 8: one number, the sum of squares")
