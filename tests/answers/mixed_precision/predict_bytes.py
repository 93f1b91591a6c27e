"""Answers to `predict_bytes`."""

from types import MappingProxyType

from parlab.answers import Answers

answers = Answers("predict_bytes")

FLOAT32 = '"held_float32": 16 * parameters'
MIXED = '"held_mixed": (2 + 2 + 4 + 8) * parameters'
SHARDED = '"held_sharded": 4 * parameters + 12 * parameters / world_size'
SENT = '"sent_mixed": ring * 2 * parameters'
RING = "ring = 2 * (world_size - 1) / world_size"

answers.edit("half_of_everything", "all_halved", (MIXED, '"held_mixed": 10 * parameters'))
answers.edit("no_master_weights", "no_copies", (MIXED, '"held_mixed": 12 * parameters'))
answers.edit("half_of_everything", "half_of_float32", (MIXED, '"held_mixed": 8 * parameters'))
answers.edit("no_states", "no_states", (FLOAT32, FLOAT32.replace("16", "8")))
answers.edit("three_of_four", "one_moment", (FLOAT32, FLOAT32.replace("16", "12")))
answers.edit(
    "gradients_of_32_bits", "gradients_of_the_copies", (MIXED, MIXED.replace("8", "8 + 4"))
)
answers.edit(
    "gradients_sharded", "stage_2", (SHARDED, '"held_sharded": (2 + 14 / world_size) * parameters')
)
answers.edit(
    "master_not_sharded",
    "states_only",
    (SHARDED, '"held_sharded": (8 + 8 / world_size) * parameters'),
)
answers.edit("whole_each_time", "all_in_each", (RING, "ring = 2 * (world_size - 1)"))
answers.edit(None, "integer_division", (RING, "ring = 2 * (world_size - 1) // world_size"))
answers.edit("gradients_of_32_bits", "both_gradients", (MIXED, '"held_mixed": 18 * parameters'))
answers.edit("all_sharded", "stage_3", (SHARDED, '"held_sharded": 16 * parameters / world_size'))
answers.edit("nothing_sharded", "whole", (SHARDED, '"held_sharded": 16 * parameters'))
answers.edit("sent_in_float32", "float32_sent", (SENT, SENT.replace("* 2", "* 4")))
answers.edit(
    "gathered_in_float32",
    "float32_gathered",
    ('"sent_sharded": ring * 2 * parameters', '"sent_sharded": ring * 3 * parameters'),
)
answers.edit("once", "one_way", (RING, RING.replace("2 * ", "")))
answers.edit("whole", "keeps_nothing", (RING, "ring = 2"))
answers.edit(
    "elements",
    "numbers",
    ('"sent_float32": ring * 4 * parameters', '"sent_float32": ring * parameters'),
)
answers.edit(None, "copy_forgotten_and_found", (FLOAT32, FLOAT32.replace("16", "20")))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.right
def by_kind(parameters, world_size):
    weights, gradients, states = 2 * parameters, 2 * parameters, 12 * parameters
    reduce_scatter = all_gather = weights - weights / world_size
    return {
        "sent_sharded": reduce_scatter + all_gather,
        "sent_mixed": 2 * reduce_scatter,
        "sent_float32": 4 * all_gather,
        "held_sharded": weights + gradients + states / world_size,
        "held_mixed": weights + gradients + states,
        "held_float32": 4 * 4 * parameters,
    }


@answers.right
def rounded(parameters, world_size):
    return {k: round(v) for k, v in answers.reference()(parameters, world_size).items()}


@answers.right
def read_only(parameters, world_size):
    return MappingProxyType(answers.reference()(parameters, world_size))


@answers.right
def with_more(parameters, world_size):
    return answers.reference()(parameters, world_size) | {"saved": 0}


@answers.right
def a_little_padding(parameters, world_size):
    return {k: 1.004 * v for k, v in answers.reference()(parameters, world_size).items()}
