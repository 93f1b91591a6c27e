"""Answers to `predict_rank_bytes`."""

from parlab_staff.answers import Answers

answers = Answers("predict_rank_bytes")

PARAMETERS = '"parameters": 4 * parameters'
GRADIENTS = '"gradients": 4 * parameters'
STATES = '"states": 2 * (shard + 4 * shard / 256)'
ACTIVATIONS = '"activations": layers * 4 * batch * sequence * hidden'
SENT = '"sent": 2 * 4 * (parameters - shard)'

for mistake, name, old, new in (
    ("absmax_left_out", "absmax_left_out", STATES, '"states": 2 * shard'),
    ("not_sharded", "not_sharded", STATES, '"states": 2 * (parameters + parameters / 64)'),
    ("not_sharded", "codes_not_sharded", STATES, '"states": 2 * parameters'),
    ("gradients_sharded", "gradients_sharded", GRADIENTS, '"gradients": 4 * shard'),
    ("not_checkpointed", "chapter_04", ACTIVATIONS, ACTIVATIONS.replace("4 *", "64 *")),
    ("reduced_twice", "reduced_twice", SENT, SENT.replace("2 *", "3 *")),
    ("whole", "whole", SENT, SENT.replace(" - shard", "")),
    (None, "parameters_sharded", PARAMETERS, '"parameters": 4 * shard'),
    (None, "no_gradients", GRADIENTS + ",", ""),
    (None, "all_ranks_samples", ACTIVATIONS, ACTIVATIONS + " * world_size"),
    (None, "one_absmax_for_both", STATES, '"states": 2 * shard + 4 * shard / 256'),
    ("absmax_left_out", "absmax_of_16_bits", STATES, '"states": 2 * shard + 2 * shard / 256'),
):
    answers.edit(mistake, name, (old, new))

answers.right_edit("factored", (STATES, '"states": 2.03125 * shard'))
answers.right_edit(
    "rounded", (SENT, '"sent": round(8 * parameters * (world_size - 1) / world_size)')
)


@answers.right
def in_whole_bytes(parameters, world_size, layers, batch, sequence, hidden):
    shard = -(-parameters // world_size)
    sent = 4 * parameters * (world_size - 1) // world_size
    return {
        "parameters": 4 * parameters,
        "gradients": 4 * parameters,
        "states": 2 * shard + 2 * 4 * -(-shard // 256),
        "activations": 4 * layers * batch * sequence * hidden,
        "sent": sent + sent,
    }


@answers.right
def more_numbers(parameters, world_size, layers, batch, sequence, hidden):
    found = in_whole_bytes(parameters, world_size, layers, batch, sequence, hidden)
    return found | {"total": sum(found.values()) - found["sent"]}


@answers.right
def padded(parameters, world_size, layers, batch, sequence, hidden):
    """As the buffers really are, in whole blocks."""
    blocks = -(-parameters // (world_size * 256))
    found = in_whole_bytes(parameters, world_size, layers, batch, sequence, hidden)
    return found | {"states": 2 * blocks * (256 + 4)}
