"""Exercise `predict_vanishing`."""

import math
from collections.abc import Iterator

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.predictions import Wrong, first_wrong, form, misconception

MISTAKES = Mistakes(
    whole_gap=(
        "{name}: that is the gap between numbers near the weight. A sum rounds to the nearest: "
        "what is more than half of the gap reaches the next number"
    ),
    gap_at_one=(
        "{name}: that is right for a weight from 1 to 2. Gaps double with each power of two: `eps` "
        "is the gap above 1 alone"
    ),
    proportional=(
        "{name}: that takes the gap as proportional to the weight. It is the same from one power "
        "of two to the next"
    ),
    gap_of_the_next_power=(
        "{name}: that is for the gap above the next power of two. The gap near a weight is `eps` "
        "times the power of two at or *below* it: take the floor of the logarithm (int() goes "
        "towards zero, round() to the nearest)"
    ),
    swapped="added: that is what vanishes when it is subtracted",
    gap_below=(
        "subtracted: this weight is a power of two, and the numbers below it are closer to each "
        "other than those above, twice as close"
    ),
    gap_below_everywhere=(
        "subtracted: only below a power of two are numbers closer than above. This weight is none"
    ),
    eps_below_one=(
        "counter: up to there, numbers are less than 1 apart. Where the gap is 1, adding 1 still "
        "leads to the next number; where it is 2, it does not"
    ),
    counter_from_weight="counter: it begins at 0 and adds 1, whatever the weight is",
)

FORMATS = (torch.float16, torch.bfloat16)


@check_of(MISTAKES)
def predict_vanishing(check: Check) -> str:
    """Compare with what torch's sums give, in two formats, at powers of two and between them."""
    with check.trial() as trial:
        for dtype in FORMATS:
            eps = torch.finfo(dtype).eps
            counter = counted(dtype)
            power = 2.0 ** trial.draw.choice([-6, -3, 2, 5, 7])
            between = trial.draw.choice([5, 7, 11, 13]) * 2.0 ** trial.draw.randrange(-4, 5)
            small = trial.draw.choice([5, 7, 11, 13]) * 2.0 ** trial.draw.randrange(-8, -4)
            for weight in (1.0, power, 0.5, 1024.0, 3.0, between, small):
                trial.situation = f"weight {weight:g}, eps {eps:g}"
                right = {
                    "added": vanishing(weight, dtype, 1),
                    "subtracted": vanishing(weight, dtype, -1),
                    "counter": counter,
                }
                predicted = trial.run(weight, eps)
                trial.require(
                    lambda: form(predicted, right),
                    lambda: misconception(predicted, right, wrong_numbers(weight, eps)),
                    lambda: first_wrong(predicted, right),
                )
    return "half of the gap above, and of the gap below; a counter stops where the gap is 2"


def vanishing(weight: float, dtype: torch.dtype, sign: int) -> float:
    """The largest number of the format that, added or subtracted, leaves the weight as it is."""
    w = torch.tensor(weight, dtype=dtype)
    # Bits of positive numbers are in order: look for the last that vanishes among them.
    low, high = 1, int(w.view(torch.int16))
    while high - low > 1:
        middle = (low + high) // 2
        update = torch.tensor(middle, dtype=torch.int16).view(dtype)
        if torch.equal(w + sign * update, w):
            low = middle
        else:
            high = middle
    return torch.tensor(low, dtype=torch.int16).view(dtype).item()


def counted(dtype: torch.dtype) -> float:
    """Where 0 + 1 + 1 + … stops."""
    one = torch.ones((), dtype=dtype)
    total = torch.zeros_like(one)
    while not torch.equal(total + one, total):
        total = total + one
    return total.item()


def wrong_numbers(weight: float, eps: float) -> Iterator[Wrong]:
    fraction, exponent = math.frexp(weight)
    gap = eps * 2.0 ** (exponent - 1)
    below = gap / 2 if fraction == 0.5 else gap
    if fraction == 0.5:
        yield "added", gap / 4, MISTAKES.swapped()
    for name, right in (("added", gap), ("subtracted", below)):
        if name == "subtracted" and fraction == 0.5:
            yield name, gap / 2, MISTAKES.gap_below()
        elif name == "subtracted":
            yield name, gap / 4, MISTAKES.gap_below_everywhere()
        # Who takes the whole gap has it wrong at 1 already, which is asked first.
        named = MISTAKES.whole_gap if weight == 1.0 else MISTAKES.gap_of_the_next_power
        yield name, right, named(name=name)
        yield name, eps / 2, MISTAKES.gap_at_one(name=name)
        yield name, eps, MISTAKES.gap_at_one(name=name)
        yield name, weight * eps / 2, MISTAKES.proportional(name=name)
        yield name, weight * eps, MISTAKES.proportional(name=name)
    yield "counter", 1 / eps, MISTAKES.eps_below_one()
    for gaps in (1 / eps, 2 / eps):
        yield "counter", gaps * weight, MISTAKES.counter_from_weight()
