"""Exercise `fit_alpha_beta`."""

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from parlab.checks.check import Check, check_of
from parlab.checks.compare import close
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.untouched import unchanged

ALPHA_WITHIN, BETA_WITHIN = 0.15, 0.10
# How much later two of the messages came whose times are fitted.
LATE = 1.2
# Which those are: the smallest and the largest, or the two of which about half is latency.
ENDS, MIDDLE = "the smallest and the largest", "two of which about half is latency"

MISTAKES = Mistakes(
    not_a_pair="it returns {got}: return the pair (alpha, beta), two numbers",
    swapped=(
        "α and β are the wrong way round: α is the time of an empty message in seconds, β the "
        "seconds for each byte (np.polyfit gives the highest power first)"
    ),
    bandwidth="β is in bytes a second, a bandwidth: the model wants seconds for each byte",
    by_absolute_error=(
        "{made}. Some per cent of the largest message's time are more than α, so its noise drowns "
        "α: let every message count alike by its relative error, (α + size·β)/seconds = 1"
    ),
    weighted_twice=(
        "{made}. The errors are divided by the squares of the times, so that small messages count "
        "for most: divide by the times themselves (np.polyfit multiplies the error by its `w`, and "
        "squares that: w=1/seconds)"
    ),
    two_messages_alone=(
        "{made}. That is what two of the messages give by themselves, and the smallest and the "
        "largest came late this time: fit all of them"
    ),
)


@dataclass(frozen=True)
class Times:
    """Made-up times of messages: 3 % of noise, and two of them came late."""

    alpha: float
    beta: float
    sizes: list[int]
    seconds: list[float]

    @classmethod
    def drawn(cls, draw: Random, late: str) -> "Times":
        """Times of which those named by `late`, ENDS or MIDDLE, came late."""
        alpha, beta = 10 ** draw.uniform(-6.3, -5.3), 10 ** draw.uniform(-10.3, -9.0)
        sizes = [8 * 4**k + draw.randrange(3) for k in range(draw.randrange(11, 14))]
        noise = [draw.uniform(0.97, 1.03) for _ in sizes]
        by_size = sorted(range(len(sizes)), key=lambda i: abs(math.log(sizes[i] * beta / alpha)))
        for place in (0, -1) if late == ENDS else by_size[:2]:
            noise[place] *= LATE
        pairs = [(n, (alpha + n * beta) * f) for n, f in zip(sizes, noise, strict=True)]
        draw.shuffle(pairs)  # nobody said that they come in order
        return cls(alpha, beta, [n for n, _ in pairs], [s for _, s in pairs])

    def fitted(self, power: int) -> tuple[float, float]:
        """(α, β) by least squares of the errors over seconds**power."""
        weights = np.array(self.seconds) ** -float(power)
        beta, alpha = np.polyfit(self.sizes, self.seconds, 1, w=weights)
        return float(alpha), float(beta)

    def from_two(self) -> list[tuple[float, float]]:
        """(α, β) of ways to take them from the smallest and the largest message alone."""
        pairs = sorted(zip(self.sizes, self.seconds, strict=True))
        (small, first), (large, last) = pairs[0], pairs[-1]
        through = (last - first) / (large - small)
        return [
            (first, last / large),
            (first, through),
            (first - small * through, through),
            (first, (last - first) / large),
        ]


@check_of(MISTAKES)
def fit_alpha_beta(check: Check) -> str:
    """Check the fit on made-up times, so that nobody can read α or β off a single message."""
    for late in [ENDS] * 5 + [MIDDLE] * 3:
        with check.trial() as trial:
            trial.add(f"late: {late}")
            times = Times.drawn(trial.draw, late)
            sizes, seconds = list(times.sizes), list(times.seconds)
            got = trial.run(sizes, seconds)
            trial.require(
                lambda: unchanged("`sizes`", sizes, times.sizes),
                lambda: unchanged("`seconds`", seconds, times.seconds),
                lambda: a_pair(got),
                lambda: near_the_truth(got, times),
            )
    return (
        f"α within {ALPHA_WITHIN:.0%} and β within {BETA_WITHIN:.0%} of the truth behind noisy "
        "times, in whatever order they come"
    )


def a_pair(got: Any) -> Finding | None:
    if got is None:
        return COMMON.returns_none()
    try:
        alpha, beta = got
        float(alpha), float(beta)
    except (TypeError, ValueError):
        return MISTAKES.not_a_pair(got=repr(got))
    return None


def near_the_truth(got: Any, times: Times) -> Finding | None:
    alpha, beta = map(float, got)
    if near(alpha, beta, times.alpha, times.beta):
        return None
    if near(beta, alpha, times.alpha, times.beta):
        return MISTAKES.swapped()
    if close(beta, 1 / times.beta, 0.3):
        return MISTAKES.bandwidth()
    made = (
        f"for times made with α = {times.alpha:.3g} s and β = {times.beta:.3g} s/byte it returns "
        f"{alpha:.3g} and {beta:.3g}"
    )
    if any(close(alpha, a, 1e-3) and close(beta, b, 1e-3) for a, b in times.from_two()):
        return MISTAKES.two_messages_alone(made=made)
    for power, mistake in ((0, MISTAKES.by_absolute_error), (2, MISTAKES.weighted_twice)):
        fitted = times.fitted(power)
        if close(alpha, fitted[0], 1e-3) and close(beta, fitted[1], 1e-3):
            return mistake(made=made)
    return evidence(made)


def near(alpha: float, beta: float, right_alpha: float, right_beta: float) -> bool:
    return close(alpha, right_alpha, ALPHA_WITHIN) and close(beta, right_beta, BETA_WITHIN)
