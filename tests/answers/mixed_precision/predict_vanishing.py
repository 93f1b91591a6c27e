"""Answers to `predict_vanishing`."""

import math
from types import MappingProxyType

import torch

from parlab.answers import Answers

answers = Answers("predict_vanishing")

GAP = "gap = math.ldexp(eps, exponent - 1)"
BELOW = "below = gap / 2 if fraction == 0.5 else gap"
RETURN = 'return {"added": gap / 2, "subtracted": below / 2, "counter": 2 / eps}'

answers.edit("whole_gap", "next_number", (RETURN, RETURN.replace("gap / 2", "gap")))
answers.edit("gap_below", "next_below", (RETURN, RETURN.replace("below / 2", "below")))
answers.edit("gap_at_one", "same_everywhere", (GAP, "gap = eps"))
answers.edit("whole_gap", "eps_everywhere", (RETURN, RETURN.replace("gap / 2", "eps")))
answers.edit("proportional", "proportional", (GAP, "gap = weight * eps"))
answers.edit("gap_below", "both_sides_alike", (BELOW, "below = gap"))
answers.edit("gap_below_everywhere", "half_below", (BELOW, "below = gap / 2"))
answers.edit("eps_below_one", "one_over_eps", (RETURN, RETURN.replace("2 / eps", "1 / eps")))
answers.edit(None, "mantissa_bits", (RETURN, RETURN.replace("2 / eps", "math.log2(1 / eps)")))
answers.edit("whole_gap", "exponent_of_frexp", (GAP, "gap = math.ldexp(eps, exponent)"))
answers.edit(None, "largest_number", (RETURN, RETURN.replace("2 / eps", "65504")))
answers.edit("returns_none", "no_return", (RETURN, RETURN.replace("return ", "")))
answers.edit(
    "wrong_type",
    "as_tensors",
    (RETURN, RETURN.replace("2 / eps", "__import__('torch').tensor(2 / eps)")),
)
answers.edit(
    "swapped",
    "swapped",
    (
        RETURN,
        RETURN.replace("added", "x").replace("subtracted", "added").replace("x", "subtracted"),
    ),
)
answers.edit(None, "counter_of_float16", (RETURN, RETURN.replace("2 / eps", "2048.0")))
answers.edit(
    "counter_from_weight",
    "counter_times_weight",
    (RETURN, RETURN.replace("2 / eps", "2 * weight / eps")),
)


@answers.wrong("gap_of_the_next_power")
def logarithm_cut_off(weight, eps):
    """Right above 1, and for powers of two."""
    power = 2.0 ** int(math.log2(weight))
    half = power * eps / 2
    return {"added": half, "subtracted": half / (1 + (power == weight)), "counter": 2 / eps}


@answers.wrong("gap_of_the_next_power")
def logarithm_rounded(weight, eps):
    power = 2.0 ** round(math.log2(weight))
    half = power * eps / 2
    return {"added": half, "subtracted": half / (1 + (power == weight)), "counter": 2 / eps}


@answers.right
def by_logarithm(weight, eps):
    power = 2.0 ** math.floor(math.log2(weight))
    return {
        "counter": 2.0 / eps,
        "added": power * eps / 2,
        "subtracted": power * eps / (4 if power == weight else 2),
    }


@answers.right
def measured(weight, eps):
    """Which of all updates vanish, tried in torch."""
    dtype = torch.float16 if eps == torch.finfo(torch.float16).eps else torch.bfloat16
    w = torch.tensor(weight, dtype=dtype)
    updates = torch.arange(0x7C00 if dtype == torch.float16 else 0x7F80, dtype=torch.int16)
    updates = updates.view(dtype)
    numbers = torch.arange(0.0, 5000.0).to(dtype)
    return {
        "added": updates[w + updates == w].max().item(),
        "subtracted": updates[w - updates == w].max().item(),
        "counter": int(numbers[numbers + 1 == numbers].min()),
    }


@answers.right
def neighbours(weight, eps):
    """From the next numbers above and below."""
    top = 1.0
    while top <= weight:
        top *= 2
    while top > weight:
        top /= 2
    above = weight + top * eps
    below = weight - (top * eps if weight > top else top * eps / 2)
    middles = (weight + above) / 2 - weight, weight - (weight + below) / 2
    return dict(zip(("added", "subtracted"), middles, strict=True)) | {"counter": round(2 / eps)}


@answers.right
def a_hair_more(weight, eps):
    """Within the percent that is allowed."""
    return {name: 1.005 * x for name, x in answers.reference()(weight, eps).items()}


@answers.right
def read_only(weight, eps):
    return MappingProxyType(answers.reference()(weight, eps) | {"gap": eps})
