"""Exercise `merge`."""

from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    no_maximum=(
        "{name} is not finite: the exponentials of large log-sums are infinite, and those of "
        "small ones are 0. First subtract the larger log-sum of each query from both"
    ),
    no_key=(
        "{name} is NaN for a query that sees no key of {which}. A log-sum of −inf means a weight "
        "of 0, but −inf − (−inf), 0/0, and, in the backward pass, log 0 give NaN, even if a mask "
        "discards their results. Replace the numbers before the operation"
    ),
    not_weighted=(
        "the output is the sum or the mean of both outputs. The weight of a block is its part of "
        "the sum of exponentials"
    ),
)
ARGUMENTS = ("out_1", "lse_1", "out_2", "lse_2")
# Shape of the outputs, dtype, and the log-sums: their centers, one for each query in turn, and
# how far they are from them.
CASES = {
    "small log-sums": ((2, 3, 5, 4), torch.float64, (0.0,), 2.0),
    "float32": ((6, 3), torch.float32, (0.0,), 2.0),
    "one query": ((1, 2), torch.float64, (0.0,), 2.0),
    "log-sums around 1000": ((2, 4, 3), torch.float64, (1000.0,), 2.0),
    "log-sums around −1000": ((2, 4, 3), torch.float64, (-1000.0,), 2.0),
    "log-sums around ±300 in float32": ((2, 4, 3), torch.float32, (300.0, -300.0), 2.0),
    "log-sums around 1000, 0, and −1000": ((2, 6, 2), torch.float64, (1000.0, 0.0, -1000.0), 2.0),
    "log-sums that are far apart": ((4, 6, 2), torch.float64, (0.0,), 900.0),
}
WITHOUT_KEYS = {"the first block": (0,), "the second block": (1,), "either block": (0, 1)}


@check_of(MISTAKES, ranks=1)
def merge(check: Check) -> str:
    """Check results and gradients for log-sums of all sizes, and for queries without keys."""
    with check.trial() as trial:
        for _, (shape, dtype, centers, spread) in trial.cases(CASES):
            _case(trial, _blocks(trial, shape, dtype, centers, spread), "")
        for which, blocks in WITHOUT_KEYS.items():
            given = _blocks(trial, (3, 4, 2), torch.float64, (0.0, 500.0), 2.0)
            for block in blocks:  # the first two queries have none
                given[2 * block][:, :2] = 0.0
                given[2 * block + 1][:, :2] = -torch.inf
            trial.situation = f"no key of {which} for some queries"
            _case(trial, given, which)
    return "output, log-sum, and gradients, for log-sums up to ±1000, and for blocks without keys"


def _blocks(
    trial: Trial, shape: tuple[int, ...], dtype: torch.dtype, centers: tuple[float, ...], by: float
) -> list[Tensor]:
    """Draw the four arguments."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    around = torch.tensor(centers).repeat(shape[-2])[: shape[-2]]
    sizes = (shape, shape[:-1], shape, shape[:-1])
    given = [torch.randn(size, dtype=torch.float64, generator=generator) for size in sizes]
    return [(x if number % 2 == 0 else x * by + around).to(dtype) for number, x in enumerate(given)]


def merged(out_1: Tensor, lse_1: Tensor, out_2: Tensor, lse_2: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two blocks by a softmax over both of them."""
    lses = torch.stack([lse_1, lse_2], -1)
    no_key = (lses == -torch.inf).all(-1)
    lses = lses.masked_fill(no_key.unsqueeze(-1), 0)
    out = (lses.softmax(-1).unsqueeze(-2) * torch.stack([out_1, out_2], -1)).sum(-1)
    out = out.masked_fill(no_key.unsqueeze(-1), 0)
    return out, lses.logsumexp(-1).masked_fill(no_key, -torch.inf)


def _case(trial: Trial, given: list[Tensor], which: str) -> None:
    """Check a call without gradients, and then one with them. Name a NaN for hidden keys."""
    before = [x.clone() for x in given]
    got = trial.run(*given)
    right = merged(*before)
    single = given[0].dtype is torch.float32
    tolerance = 1e-3 if single else TOLERANCE  # exp(x) is as exact as x, and 300 has few digits

    def value(name: str, one: Any, expected: Tensor, *wrong: Tensor) -> Finding | None:
        variants = [("not_weighted", x) for x in wrong]
        found = explained(one, expected, variants, MISTAKES, name, tolerance)
        if found is None or not isinstance(one, Tensor):
            return found
        if which and one.isnan().any():
            return MISTAKES.no_key(name=name, which=which)
        if not which and not one.isfinite().all():
            return MISTAKES.no_maximum(name=name)
        return found

    outs = before[0] + before[2]
    trial.require(
        *(
            lambda name=name, x=x, old=old: unchanged(f"`{name}`", x, old)
            for name, x, old in zip(ARGUMENTS, given, before, strict=True)
        ),
        lambda: _pair(got),
        lambda: value("the output", got[0], right[0], outs, outs / 2),
        lambda: value("the log-sum", got[1], right[1]),
    )
    draw = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    pulls = [torch.randn(x.shape, dtype=torch.float64, generator=draw).to(x.dtype) for x in right]
    got_gradients = trial.run_function(_gradients, trial.check.function, before, pulls)
    right_gradients = _gradients(merged, before, pulls)

    def gradient(number: int) -> Finding | None:
        name, one = f"the gradient of `{ARGUMENTS[number]}`", got_gradients[number]
        if one is None:
            return observed(f"{name} is None: no result depends on this argument for autograd")
        if which and one.isnan().any():
            return MISTAKES.no_key(name=name, which=which)
        # Without any key, the output is 0 for all weights, so gradients may be any finite numbers.
        visible = right[1].isfinite() if number % 2 else right[1].isfinite().unsqueeze(-1)
        one, expected = (
            torch.where(visible | ~x.isfinite(), x, 0) for x in (one, right_gradients[number])
        )
        return equal(one, expected, name, tolerance)

    trial.require(*(lambda number=number: gradient(number) for number in range(4)))


def _gradients(function: Any, given: list[Tensor], pulls: list[Tensor]) -> list[Tensor | None]:
    leaves = [x.clone().requires_grad_() for x in given]
    results = function(*leaves)
    loss = [(x, pull) for x, pull in zip(results, pulls, strict=True) if x.requires_grad]
    if loss:
        torch.autograd.backward(*zip(*loss, strict=True))
    return [x.grad for x in leaves]


def _pair(got: Any) -> Finding | None:
    if found := has_type(got, tuple | list, "a pair of tensors"):
        return found
    return None if len(got) == 2 else observed(f"it returns {len(got)} values: return `out, lse`")
