"""Answers to `predict_bytes`."""

from types import MappingProxyType

from parlab_staff.answers import Answers

answers = Answers("predict_bytes")
REFERENCE = answers.reference()

FLOAT32 = '"held_float32": 16 * parameters'
MIXED = '"held_mixed": (2 + 2 + 4 + 8) * parameters'
SHARDED = '"held_sharded": 4 * parameters + 12 * parameters / world_size'
SENT = '"sent_mixed": ring * 2 * parameters'
SENT_SHARDED = '"sent_sharded": ring * 2 * parameters'
RING = "ring = 2 * (world_size - 1) / world_size"

for mistake, name, old, new in (
    ("no_master_weights", "all_halved", MIXED, '"held_mixed": 10 * parameters'),
    ("no_master_weights", "no_copies", MIXED, '"held_mixed": 12 * parameters'),
    ("gradients_of_32_bits", "gradients_of_the_copies", MIXED, MIXED.replace("8", "8 + 4")),
    ("gradients_of_32_bits", "both_gradients", MIXED, '"held_mixed": 18 * parameters'),
    ("other_shards", "stage_2", SHARDED, SHARDED.replace("4", "2").replace("12", "14")),
    ("other_shards", "states_only", SHARDED, SHARDED.replace("4", "8").replace("12", "8")),
    ("once", "one_way", RING, RING.replace("2 * ", "")),
    ("whole", "keeps_nothing", RING, "ring = 2"),
    (None, "no_states", FLOAT32, FLOAT32.replace("16", "8")),
    (None, "stage_3", SHARDED, '"held_sharded": 16 * parameters / world_size'),
    (None, "float32_sent", SENT, SENT.replace("* 2", "* 4")),
    (None, "float32_gathered", SENT_SHARDED, SENT_SHARDED.replace("* 2", "* 3")),
    (None, "integer_division", RING, RING.replace("/", "//")),
    ("returns_none", "no_return", "    return {", "    x = {"),
):
    answers.edit(mistake, name, (old, new))


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
    return {k: round(v) for k, v in REFERENCE(parameters, world_size).items()}


@answers.right
def read_only(parameters, world_size):
    return MappingProxyType(REFERENCE(parameters, world_size))


@answers.right
def with_more(parameters, world_size):
    return REFERENCE(parameters, world_size) | {"saved": 0}


@answers.right
def a_little_padding(parameters, world_size):
    return {k: 1.004 * v for k, v in REFERENCE(parameters, world_size).items()}
