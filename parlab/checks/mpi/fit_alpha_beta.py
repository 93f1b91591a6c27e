"""Exercise `fit_alpha_beta`."""

import math
from random import Random
from typing import Any

import numpy as np

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

ALPHA_WITHIN, BETA_WITHIN = 0.15, 0.10
LATE = 1.2  # the factor by which two of the messages took longer
SLOWER = 1.4  # the factor by which the network is slower when all messages are sent again
# The fit of relative errors to both is 1.135, and that of a fit with improved weights is 1.2.
BETWEEN = 1.167
# Delay different pairs. Otherwise, a fit of two messages alone could be right.
ENDS = "the smallest and the largest message"
MIDDLE = "two messages that spend about half of their time on latency"

MISTAKES = Mistakes(
    swapped=(
        "α and β are swapped: α is a time in seconds, β the seconds for each byte. np.polyfit "
        "returns the highest power first"
    ),
    bandwidth="β is a bandwidth in bytes per second. Return its inverse, the seconds for each byte",
    by_absolute_error=(
        "the fit minimizes the absolute error. A few percent of the largest message's time are "
        "longer than α, so the fit ignores α. Divide each equation by its measured time"
    ),
)
Pair = tuple[float, float]


@check_of(MISTAKES, ranks=1)
def fit_alpha_beta(check: Check) -> str:
    """Check the fit on generated times, in which no single message determines α or β."""
    for late in [ENDS] * 5 + [MIDDLE] * 3:
        with check.trial() as trial:
            for _ in trial.cases({f"{late} took {LATE - 1:.0%} longer": late}):
                truth, sizes, times = random_times(trial.draw, late)
                trial.add(f"the times follow α = {truth[0]:.3g}, β = {truth[1]:.3g}")
                fitted_well(trial, truth, sizes, times)
    with check.trial() as trial:
        trial.add(f"each size occurs twice, and the second time took {SLOWER - 1:.0%} longer")
        (alpha, beta), sizes, times = random_times(trial.draw, "")
        truth = alpha * BETWEEN, beta * BETWEEN
        fitted_well(trial, truth, [*sizes, *sizes], [*times, *(SLOWER * time for time in times)])
    return (
        f"α within {ALPHA_WITHIN:.0%} and β within {BETA_WITHIN:.0%} of the truth behind noisy "
        "times, in any order"
    )


def fitted_well(trial: Trial, truth: Pair, sizes: list[int], times: list[float]) -> None:
    given_sizes, given_times = list(sizes), list(times)
    got = trial.run(given_sizes, given_times)
    trial.require(
        lambda: unchanged("`sizes`", given_sizes, sizes),
        lambda: unchanged("`seconds`", given_times, times),
        lambda: is_pair(got),
        lambda: near_truth((float(got[0]), float(got[1])), truth, sizes, times),
    )


def random_times(draw: Random, late: str) -> tuple[Pair, list[int], list[float]]:
    """Draw (α, β), sizes, and times with 3% noise, in any order. `late` says which are late."""
    alpha, beta = 10 ** draw.uniform(-6.3, -5.3), 10 ** draw.uniform(-10.3, -9.0)
    sizes = [8 * 4**k + draw.randrange(3) for k in range(draw.randrange(11, 14))]
    half_latency = sorted(sizes, key=lambda size: abs(math.log(size * beta / alpha)))[:2]
    late_sizes = {ENDS: (sizes[0], sizes[-1]), MIDDLE: half_latency}.get(late, ())
    draw.shuffle(sizes)
    factors = [draw.uniform(0.97, 1.03) * (LATE if n in late_sizes else 1) for n in sizes]
    times = [(alpha + n * beta) * factor for n, factor in zip(sizes, factors, strict=True)]
    return (alpha, beta), sizes, times


def is_pair(got: Any) -> Finding | None:
    if got is None:
        return COMMON.returns_none()
    try:
        alpha, beta = got
        float(alpha), float(beta), got[0]
    except (TypeError, ValueError, KeyError):
        return observed(f"it returns {got!r}, expected the pair (alpha, beta) of two numbers")
    return None


def near_truth(got: Pair, truth: Pair, sizes: list[int], times: list[float]) -> Finding | None:
    if near(got, truth, ALPHA_WITHIN, BETA_WITHIN):
        return None
    if near(got[::-1], truth, ALPHA_WITHIN, BETA_WITHIN):
        return MISTAKES.swapped()
    if close(got[1], 1 / truth[1], 0.3):
        return MISTAKES.bandwidth()
    beta, alpha = np.polyfit(sizes, times, 1)
    if near(got, (alpha, beta), 1e-3, 1e-3):
        return MISTAKES.by_absolute_error()
    return observed(f"it returns α = {got[0]:.3g} s and β = {got[1]:.3g} s per byte, too far off")


def near(got: Pair, right: Pair, alpha: float, beta: float) -> bool:
    return close(got[0], right[0], alpha) and close(got[1], right[1], beta)
