"""Answers to `predict_traffic`."""

from types import MappingProxyType

from parlab.answers import Answers
from parlab.costs import zero

answers = Answers("predict_traffic")

answers.edit("whole", "keeps_nothing", (" * (world_size - 1) / world_size", ""))
answers.edit("once", "all_reduce_is_one", ('"plain": 2 * once', '"plain": once'))
answers.edit("once", "gradients_only", ('"stage_2": 2 * once', '"stage_2": once'))
answers.edit(
    "all_reduce_and_gather", "all_reduce_and_gather", ('"stage_1": 2 * once', '"stage_1": 3 * once')
)
answers.edit("gathered_once", "gathered_once", ('"stage_3": 3 * once', '"stage_3": 2 * once'))
answers.edit("gathered_thrice", "whole_again", ('"stage_3": 3 * once', '"stage_3": 4 * once'))
answers.edit("once", "sixteen_bits", ("4 * parameters", "2 * parameters"))
answers.edit(None, "shards_only", (" * (world_size - 1) / world_size", " / world_size"))
answers.edit("elements", "numbers", ("4 * parameters", "parameters"))
answers.edit(
    "all_ranks", "all_ranks_together", ("(world_size - 1) / world_size", "(world_size - 1)")
)
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.right
def by_collective(parameters, world_size):
    gather = scatter = 4 * parameters - 4 * parameters / world_size
    return {
        "plain": scatter + gather,
        "stage_1": scatter + gather,
        "stage_2": scatter + gather,
        "stage_3": gather + gather + scatter,
    }


@answers.right
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
