"""Exercise `merge`."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained, has_parts
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
        "{name} is NaN for a query that sees no key of a block. A log-sum of −inf means a weight "
        "of 0, but −inf − (−inf), 0/0, and, in the backward pass, log 0 give NaN, even if a mask "
        "discards their results. Replace the numbers before the operation"
    ),
    not_weighted=(
        "the output is the mean of both outputs. The weight of a block is its part of "
        "the sum of exponentials"
    ),
)
ARGUMENTS = ("out_1", "lse_1", "out_2", "lse_2")
# Shape of the outputs; dtype; centers of the log-sums, which the queries take in turn; their spread
# around these; blocks (0 or 1) of which the first two queries see no key.
CASES = {
    "small log-sums": ((2, 3, 5, 4), torch.float64, (0.0,), 2.0, ()),
    "log-sums around ±300 in float32": ((2, 4, 3), torch.float32, (300.0, -300.0), 2.0, ()),
    "log-sums around 1000 and −1000": ((2, 6, 2), torch.float64, (1000.0, 0.0, -1000.0), 2.0, ()),
    "log-sums that are far apart": ((4, 6, 2), torch.float64, (0.0,), 900.0, ()),
    "no key of the first block": ((3, 4, 2), torch.float64, (0.0, 500.0), 2.0, (0,)),
    "no key of the second block": ((3, 4, 2), torch.float64, (0.0, 500.0), 2.0, (1,)),
    "no key of either block": ((3, 4, 2), torch.float64, (0.0, 500.0), 2.0, (0, 1)),
}


@check_of(MISTAKES, ranks=1)
def merge(check: Check) -> str:
    """Check results and gradients for log-sums of all sizes, and for queries without keys."""
    with check.trial() as trial:
        for _, (shape, dtype, centers, spread, hidden) in trial.cases(CASES):
            generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
            outs = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
            lses = torch.randn(2, *shape[:-1], dtype=torch.float64, generator=generator) * spread
            lses += torch.tensor(centers).repeat(shape[-2])[: shape[-2]]
            for block in hidden:
                outs[block, :, :2], lses[block, :, :2] = 0.0, -torch.inf
            pulls = [torch.randn(x[0].shape, generator=generator).to(dtype) for x in (outs, lses)]
            given = [x.to(dtype) for x in (outs[0], lses[0], outs[1], lses[1])]
            _case(trial, given, pulls, bool(hidden))
    return "output, log-sum, and gradients, for log-sums up to ±1000, and for blocks without keys"


def merged(out_1: Tensor, lse_1: Tensor, out_2: Tensor, lse_2: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two blocks by a softmax over both of them."""
    lses = torch.stack([lse_1, lse_2], -1)
    no_key = (lses == -torch.inf).all(-1)
    lses = lses.masked_fill(no_key.unsqueeze(-1), 0)
    out = (lses.softmax(-1).unsqueeze(-2) * torch.stack([out_1, out_2], -1)).sum(-1)
    out = out.masked_fill(no_key.unsqueeze(-1), 0)
    return out, lses.logsumexp(-1).masked_fill(no_key, -torch.inf)


def _passes(function: Any, leaves: list[Tensor], pulls: list[Tensor]) -> Any:
    # Views, because a leaf could not be changed in place.
    results = function(*(x.view_as(x) for x in leaves))
    if has_parts(results, "out, lse") is None:
        pairs = [(x, pull) for x, pull in zip(results, pulls, strict=True) if x.requires_grad]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
    return results


def _case(trial: Trial, given: list[Tensor], pulls: list[Tensor], hidden: bool) -> None:
    own, leaves = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    got = trial.run_function(_passes, trial.check.function, leaves, pulls)
    right = _passes(merged, own, pulls)
    # In float32, exp(x) is only as exact as x, and near 300, x has few digits after the point.
    tolerance = 1e-3 if given[0].dtype is torch.float32 else TOLERANCE
    outs = given[0] + given[2]

    def value(index: int, name: str, wrong: dict[str, Tensor]) -> Finding | None:
        one, expected = got[index], right[index].detach()
        found = explained(one, expected, wrong, MISTAKES, name, tolerance)
        if found is None or not isinstance(one, Tensor):
            return found
        if hidden:
            return MISTAKES.no_key(name=name) if one.isnan().any() else found
        return found if one.isfinite().all() else MISTAKES.no_maximum(name=name)

    def gradient(index: int) -> Finding | None:
        name, one, expected = (
            f"the gradient of `{ARGUMENTS[index]}`",
            *(x[index].grad for x in (leaves, own)),
        )
        if one is None:
            return observed(f"{name} is None: no result depends on this argument for autograd")
        if hidden and one.isnan().any():
            return MISTAKES.no_key(name=name)
        # Without any key, the output is 0 for all weights, so gradients may be any finite numbers.
        visible = right[1].isfinite() if index % 2 else right[1].isfinite().unsqueeze(-1)
        one, expected = (torch.where(visible | ~x.isfinite(), x, 0) for x in (one, expected))
        return equal(one, expected, name, tolerance)

    trial.require(
        *(
            partial(unchanged, f"`{name}`", x, old)
            for name, x, old in zip(ARGUMENTS, leaves, given, strict=True)
        ),
        lambda: has_parts(got, "out, lse"),
        lambda: value(0, "the output", {"not_weighted": outs / 2}),
        lambda: value(1, "the log-sum", {}),
        *(partial(gradient, index) for index in range(4)),
    )
