"""Answers to `predict_traffic`."""

from types import MappingProxyType

from parlab.costs import zero
from parlab_staff.answers import Answers

answers = Answers("predict_traffic")

RING = " * (world_size - 1) / world_size"
for mistake, name, edit in (
    ("whole", "keeps_nothing", (RING, "")),
    ("once", "all_reduce_is_one", ('"plain": 2 * once', '"plain": once')),
    ("once", "gradients_only", ('"stage_2": 2 * once', '"stage_2": once')),
    ("all_reduce_and_gather", "all_reduced", ('"stage_1": 2 * once', '"stage_1": 3 * once')),
    ("gathered_once", "gathered_once", ('"stage_3": 3 * once', '"stage_3": 2 * once')),
    (None, "whole_again", ('"stage_3": 3 * once', '"stage_3": 4 * once')),
    ("once", "sixteen_bits", ("4 * parameters", "2 * parameters")),
    (None, "shards_only", (RING, " / world_size")),
    (
        None,
        "whole_parameters",
        ("4 * parameters" + RING, "4 * (parameters // world_size) * (world_size - 1)"),
    ),
    ("elements", "numbers", ("4 * parameters", "parameters")),
    ("all_ranks", "all_ranks_together", (RING, " * (world_size - 1)")),
):
    answers.edit(mistake, name, edit)


@answers.right
def by_collective(parameters, world_size):
    gather = scatter = 4 * parameters - 4 * parameters / world_size
    steps = dict.fromkeys(("plain", "stage_1", "stage_2"), scatter + gather)
    return steps | {"stage_3": gather + gather + scatter}


@answers.wrong("formula_called")
def from_the_costs(parameters, world_size):
    names = ("plain", "stage_1", "stage_2", "stage_3")
    return {name: zero.bytes_sent(parameters, world_size, i, 4) for i, name in enumerate(names)}


@answers.right
def read_only(parameters, world_size):
    return MappingProxyType(answers.reference()(parameters, world_size))


@answers.right
def rounded(parameters, world_size):
    return {k: round(v) for k, v in answers.reference()(parameters, world_size).items()}


@answers.right
def with_more(parameters, world_size):
    return {**answers.reference()(parameters, world_size), "messages": 2}
