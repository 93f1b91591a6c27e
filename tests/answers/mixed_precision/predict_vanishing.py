"""Answers to `predict_vanishing`."""

import math
from types import MappingProxyType

import torch

from parlab_staff.answers import Answers

answers = Answers("predict_vanishing")
REFERENCE = answers.reference()

GAP = "gap = math.ldexp(eps, exponent - 1)"
BELOW = "below = gap / 2 if fraction == 0.5 else gap"
RETURN = 'return {"added": gap / 2, "subtracted": below / 2, "counter": 2 / eps}'
SWAPPED = 'return {"added": below / 2, "subtracted": gap / 2, "counter": 2 / eps}'

for mistake, name, old, new in (
    ("whole_gap", "next_number", RETURN, RETURN.replace("gap / 2", "gap")),
    ("whole_gap", "next_below", RETURN, RETURN.replace("below / 2", "below")),
    ("whole_gap", "exponent_of_frexp", GAP, "gap = math.ldexp(eps, exponent)"),
    ("gap_at_one", "same_everywhere", GAP, "gap = eps"),
    ("proportional", "proportional", GAP, "gap = weight * eps"),
    ("gap_below", "both_sides_alike", BELOW, "below = gap"),
    ("gap_below", "half_below", BELOW, "below = gap / 2"),
    ("eps_below_one", "one_over_eps", RETURN, RETURN.replace("2 / eps", "1 / eps")),
    ("gap_below", "swapped", RETURN, SWAPPED),
    (None, "counter_of_float16", RETURN, RETURN.replace("2 / eps", "2048.0")),
    (None, "counter_times_weight", RETURN, RETURN.replace("2 / eps", "2 * weight / eps")),
    ("returns_none", "no_return", RETURN, RETURN.replace("return ", "")),
    ("wrong_type", "as_text", RETURN, RETURN.replace("2 / eps", "str(2 / eps)")),
):
    answers.edit(mistake, name, (old, new))


@answers.wrong(None)
def logarithm_cut_off(weight, eps):
    """Right above 1, and for powers of two."""
    power = 2.0 ** int(math.log2(weight))
    half = power * eps / 2
    return {"added": half, "subtracted": half / (1 + (power == weight)), "counter": 2 / eps}


@answers.wrong(None)
def logarithm_rounded(weight, eps):
    power = 2.0 ** round(math.log2(weight))
    half = power * eps / 2
    return {"added": half, "subtracted": half / (1 + (power == weight)), "counter": 2 / eps}


@answers.right
def by_logarithm(weight, eps):
    power = 2.0 ** math.floor(math.log2(weight))
    below = 4 if power == weight else 2
    return {"counter": 2.0 / eps, "added": power * eps / 2, "subtracted": power * eps / below}


@answers.right
def measured(weight, eps):
    """Try all updates in torch."""
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
def neighbors(weight, eps):
    """From the next numbers above and below."""
    top = 2.0 ** math.floor(math.log2(weight))
    above = weight + top * eps
    below = weight - (top * eps if weight > top else top * eps / 2)
    middles = (weight + above) / 2 - weight, weight - (weight + below) / 2
    return dict(zip(("added", "subtracted"), middles, strict=True)) | {"counter": round(2 / eps)}


@answers.right
def a_hair_more(weight, eps):
    """Within the half percent that is allowed."""
    return {name: 1.005 * x for name, x in REFERENCE(weight, eps).items()}


@answers.right
def read_only(weight, eps):
    return MappingProxyType(REFERENCE(weight, eps) | {"gap": eps})
