"""Answers to `predict_stages`."""

from types import MappingProxyType

from parlab.costs import zero
from parlab_staff.answers import Answers

answers = Answers("predict_stages")

PLAIN, STAGE_1 = '"plain": 16 *', "8 * parameters + 8 * shard"
STAGE_2 = '"stage_2": 4 * parameters + 12 * shard'

answers.edit("no_states", "parameters_and_gradients", (PLAIN, '"plain": 8 *'))
answers.edit(
    "mixed",
    "from_the_paper",
    (STAGE_1, "4 * parameters + 12 * shard"),
    (STAGE_2, '"stage_2": 2 * parameters + 14 * shard'),
)
answers.edit(None, "gradients_stay_whole", (STAGE_2, f'"stage_2": {STAGE_1}'))
answers.edit(None, "gradients_too_early", (STAGE_1, "4 * parameters + 12 * shard"))
answers.edit(
    None,
    "gradients_alone",
    (STAGE_2, '"stage_2": 12 * parameters + 4 * shard'),
    says="the right number",
)
answers.edit(None, "padded", ("parameters / world_size", "-(-parameters // world_size)"))
answers.edit(None, "whole_parameters", ("parameters / world_size", "parameters // world_size"))
answers.edit(None, "with_a_step_counter", ('"stage_3": 16 * shard', '"stage_3": 16 * shard + 4'))
answers.edit("all_ranks", "all_ranks_together", (PLAIN, '"plain": 16 * world_size *'))
answers.edit("numbers", "numbers", ('"stage_3": 16 * shard', '"stage_3": 4 * shard'))
answers.edit(None, "all_sharded_at_once", (STAGE_1, "16 * shard"))


@answers.right
def by_kind(parameters, world_size):
    kinds = {"optimizer_states": 8, "gradients": 4, "parameters": 4}
    found = {"plain": 16 * parameters}
    for stage, kind in enumerate(kinds, 1):
        kinds[kind] /= world_size
        found[f"stage_{stage}"] = parameters * sum(kinds.values())
    return found


@answers.right
def rounded(parameters, world_size):
    return {k: round(v) for k, v in answers.reference()(parameters, world_size).items()}


@answers.wrong("formula_called")
def from_the_costs(parameters, world_size):
    return {
        name: zero.total(parameters, world_size, i, zero.FLOAT32_ADAM)
        for i, name in enumerate(("plain", "stage_1", "stage_2", "stage_3"))
    }


@answers.right
def read_only(parameters, world_size):
    return MappingProxyType(answers.reference()(parameters, world_size))


@answers.right
def with_more(parameters, world_size):
    return answers.reference()(parameters, world_size) | {"saved": 0.5}
