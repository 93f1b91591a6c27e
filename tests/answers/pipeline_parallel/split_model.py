"""Answers to `split_model`."""

import copy
import itertools

import numpy as np
from torch import nn

from parlab.answers import Answers

answers = Answers("split_model")
reference = answers.reference()

answers.edit("longer_last", "last_longer", ("(stage < longer)", "(stage >= stages - longer)"))
answers.edit(
    "not_refused", "no_upper_bound", ("if not 1 <= stages <= len(layers):", "if stages < 1:")
)
answers.edit(
    "not_refused",
    "no_lower_bound",
    ("if not 1 <= stages <= len(layers):", "if stages > len(layers):"),
    ("    short, longer", "    stages = max(stages, 1)\n    short, longer"),
)
answers.edit(None, "another_error", ("raise ValueError(", "raise IndexError("))
answers.edit("returns_none", "no_return", ("    return cut\n", ""))
answers.edit(
    "wrong_type", "plain_lists", ("nn.Sequential(*layers[first:after])", "layers[first:after]")
)


@answers.wrong("taken_apart")
def flattened(layers, stages):
    """Layers that are rows of layers themselves lose their border."""
    return [
        nn.Sequential(*(p for layer in stage for p in _parts(layer)))
        for stage in reference(layers, stages)
    ]


def _parts(layer):
    return layer if isinstance(layer, nn.Sequential) else [layer]


@answers.wrong("copied")
def copies(layers, stages):
    return reference(copy.deepcopy(layers), stages)


@answers.wrong("layers_missing")
def floor(layers, stages):
    if not 1 <= stages <= len(layers):
        raise ValueError("no")
    each = len(layers) // stages
    return [nn.Sequential(*layers[i * each : (i + 1) * each]) for i in range(stages)]


@answers.wrong("uneven")
def rest_to_the_first(layers, stages):
    if not 1 <= stages <= len(layers):
        raise ValueError("no")
    each = len(layers) // stages
    cuts = [0, *(len(layers) - (stages - s) * each for s in range(1, stages)), len(layers)]
    return [nn.Sequential(*layers[a:b]) for a, b in itertools.pairwise(cuts)]


@answers.wrong("strided")
def dealt(layers, stages):
    if not 1 <= stages <= len(layers):
        raise ValueError("no")
    return [nn.Sequential(*layers[s::stages]) for s in range(stages)]


@answers.wrong("argument_changed")
def emptied(layers, stages):
    cut = reference(list(layers), stages)
    layers.clear()
    return cut


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
    """A Sequential of all, sliced."""
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
