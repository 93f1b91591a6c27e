"""Exercise `predict_vanishing`: torch's sums are the reference."""

import math

import torch

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers

MISTAKES = Mistakes(
    whole_gap=(
        "{name}: this is the whole gap between numbers near the weight. Sums round to the nearest "
        "number, so an update of more than half of the gap does not vanish"
    ),
    gap_at_one=(
        "added: this is right for weights from 1 to 2. The gap doubles with each power of two; "
        "`eps` is the gap above 1"
    ),
    proportional=(
        "{name}: this takes the gap as proportional to the weight. It is the same from one power "
        "of two to the next"
    ),
    gap_below=(
        "subtracted: the gap below a weight is half of the gap above if the weight is a power of "
        "two. Elsewhere, both are the same"
    ),
    eps_below_one=(
        "counter: up to this number, the gap is less than 1. The counter stops where the gap is 2"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_vanishing(check: Check) -> str:
    """Compare with torch's sums, in two formats, at powers of two and between them."""
    with check.trial() as trial:
        power = 2.0 ** trial.draw.choice([-6, -3, 2, 5, 7])
        between = trial.draw.choice([5, 7, 11, 13]) * 2.0 ** trial.draw.randrange(-4, 5)
        small = trial.draw.choice([5, 7, 11, 13]) * 2.0 ** trial.draw.randrange(-8, -4)
        weights = (1.25, 1.0, power, 0.5, 1024.0, 3.0, between, small)
        pairs = [(w, dtype) for dtype in (torch.float16, torch.bfloat16) for w in weights]
        cases = {f"weight {w:g}, {str(dtype)[6:]}": (w, dtype) for w, dtype in pairs}
        for _, (weight, dtype) in trial.cases(cases):
            eps = torch.finfo(dtype).eps
            right = {
                "added": largest_vanishing(weight, dtype, 1),
                "subtracted": largest_vanishing(weight, dtype, -1),
                "counter": last_count(dtype),
            }
            predicted = trial.run(weight, eps)
            require_numbers(trial, predicted, right, wrong_numbers(weight, eps), "the right number")
    return "half of the gap above, and of the gap below; a counter stops where the gap is 2"


def largest_vanishing(weight: float, dtype: torch.dtype, sign: int) -> float:
    """Try all positive numbers of the format up to the weight."""
    w = torch.tensor(weight, dtype=dtype)
    # The bits of positive numbers are in order.
    updates = torch.arange(1, int(w.view(torch.int16)), dtype=torch.int16).view(dtype)
    return updates[w + sign * updates == w].max().item()


def last_count(dtype: torch.dtype) -> float:
    """Find where 0 + 1 + 1 + … stops."""
    numbers = torch.arange(5000.0).to(dtype)
    return numbers[numbers + 1 == numbers].min().item()


def wrong_numbers(weight: float, eps: float) -> list[Wrong]:
    """List what each mistake predicts for the first weight that it gets wrong."""
    if weight == 1.25:
        wrong = [("subtracted", eps / 4, MISTAKES.gap_below())]
        for name in ("added", "subtracted"):
            wrong.append((name, eps, MISTAKES.whole_gap(name=name)))
            wrong.append((name, weight * eps / 2, MISTAKES.proportional(name=name)))
    elif weight == 1.0:
        wrong = [("subtracted", eps / 2, MISTAKES.gap_below())]
    elif math.frexp(weight)[0] == 0.5:  # a rounded logarithm is right for powers of two
        wrong = [("added", eps / 2, MISTAKES.gap_at_one())]
    else:
        wrong = []
    return [*wrong, ("counter", 1 / eps, MISTAKES.eps_below_one())]
