"""Answers to `split_model`."""

import copy
import itertools

import numpy as np
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("split_model")
reference = answers.reference()

LIMITS = "if not 1 <= stages <= len(layers):"

answers.edit(
    None,
    "last_longer",
    ("(stage < longer)", "(stage >= stages - longer)"),
    says="the first stages have",
)
answers.edit("not_refused", "no_upper_bound", (LIMITS, "if stages < 1:"))
answers.edit(
    "not_refused",
    "no_lower_bound",
    (LIMITS, "if stages > len(layers):"),
    ("    short, longer", "    stages = max(stages, 1)\n    short, longer"),
)
answers.edit(None, "another_error", ("raise ValueError(", "raise IndexError("))
answers.edit("returns_none", "no_return", ("    return cut\n", ""))
answers.edit(
    "wrong_type", "plain_lists", ("nn.Sequential(*layers[first:after])", "layers[first:after]")
)
answers.edit(None, "floor", ("short + (stage < longer)", "short"))
answers.edit(None, "dealt", ("layers[first:after]", "layers[stage::stages]"))
answers.edit(
    "argument_changed", "emptied", ("    return cut\n", "    layers.clear()\n    return cut\n")
)


@answers.wrong("copied")
def copies(layers, stages):
    return reference(copy.deepcopy(layers), stages)


@answers.wrong(None, says="do not take them apart")
def flattened(layers, stages):
    return [
        nn.Sequential(
            *(part for a in stage for part in (a if isinstance(a, nn.Sequential) else [a]))
        )
        for stage in reference(layers, stages)
    ]


@answers.right
def by_numpy(layers, stages):
    if stages < 1 or stages > len(layers):
        raise ValueError(f"{stages} stages of {len(layers)} layers")
    places = np.array_split(np.arange(len(layers)), stages)
    return [nn.Sequential(*(layers[i] for i in some)) for some in places]


@answers.right
def one_after_the_other(layers, stages):
    if not 0 < stages <= len(layers):
        raise ValueError("a stage would have no layer")
    left, cut = list(layers), []
    while stages:
        take = -(-len(left) // stages)
        cut.append(nn.Sequential(*left[:take]))
        left, stages = left[take:], stages - 1
    return cut


@answers.right
def slices_of_one(layers, stages):
    if not 0 < stages <= len(layers):
        raise ValueError("a stage would have no layer")
    whole, n = nn.Sequential(*layers), len(layers)
    cuts = [s * (n // stages) + min(s, n % stages) for s in range(stages + 1)]
    return [whole[a:b] for a, b in itertools.pairwise(cuts)]


@answers.right
def as_a_tuple(layers, stages):
    return tuple(reference(layers, stages))


class _Stage(nn.Sequential):
    pass


@answers.right
def own_class(layers, stages):
    return [_Stage(*stage) for stage in reference(copy.copy(layers), stages)]
