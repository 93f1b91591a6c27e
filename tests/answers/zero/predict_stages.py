"""Answers to `predict_stages`."""

from types import MappingProxyType

from parlab.answers import Answers
from parlab.costs import zero

answers = Answers("predict_stages")

answers.edit(
    "no_states", "parameters_and_gradients", ('"plain": 16 * parameters', '"plain": 8 * parameters')
)
answers.edit("one_moment", "one_moment", ('"plain": 16 * parameters', '"plain": 12 * parameters'))
answers.edit(
    "mixed",
    "from_the_paper",
    ("8 * parameters + 8 * shard", "4 * parameters + 12 * shard"),
    ('"stage_2": 4 * parameters + 12 * shard', '"stage_2": 2 * parameters + 14 * shard'),
)
answers.edit(
    "stage_before",
    "gradients_stay_whole",
    ('"stage_2": 4 * parameters + 12 * shard', '"stage_2": 8 * parameters + 8 * shard'),
)
answers.edit(
    "one_kind",
    "gradients_alone",
    ('"stage_2": 4 * parameters + 12 * shard', '"stage_2": 12 * parameters + 4 * shard'),
)
answers.edit("all_ranks", "all_ranks_together", ('"plain": 16 *', '"plain": 16 * world_size *'))
answers.edit(
    None, "a_copy_as_well", ('"plain": 16 *', '"plain": 20 *'), says="what the formula gives"
)
answers.edit("numbers", "numbers", ('"stage_3": 16 * shard', '"stage_3": 4 * shard'))
answers.edit(None, "all_sharded_at_once", ("8 * parameters + 8 * shard", "16 * shard"))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.right
def by_kind(parameters, world_size):
    kinds = {"optimizer_states": 8, "gradients": 4, "parameters": 4}
    found, whole = {}, dict(kinds)
    for name, kind in zip(("plain", "stage_1", "stage_2", "stage_3"), (None, *kinds), strict=True):
        if kind:
            whole[kind] /= world_size
        found[name] = parameters * sum(whole.values())
    return found


@answers.right
def rounded(parameters, world_size):
    return {
        name: round(value) for name, value in answers.reference()(parameters, world_size).items()
    }


@answers.right
def from_the_costs(parameters, world_size):
    names = ("plain", "stage_1", "stage_2", "stage_3")
    return {
        name: zero.total(parameters, world_size, i, zero.FLOAT32_ADAM)
        for i, name in enumerate(names)
    }


@answers.right
def read_only(parameters, world_size):
    return MappingProxyType(answers.reference()(parameters, world_size))


@answers.right
def with_more(parameters, world_size):
    return answers.reference()(parameters, world_size) | {"saved": 0.5}
