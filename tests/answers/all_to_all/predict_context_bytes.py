"""Answers to `predict_context_bytes`."""

from types import MappingProxyType

from parlab_staff.answers import Answers

answers = Answers("predict_context_bytes")

FORWARD, BACKWARD = '"ulysses_forward": 4 *', '"ulysses_backward": 4 *'
RING, RING_BACK = "2 * own * steps,", "2 * own * (steps + world_size)"

answers.edit(None, "numbers", ("own = 4 * batch", "own = batch"))
answers.edit("own_part_sent", "keeps_nothing", ("own * steps / world_size", "own"))
answers.edit("output_forgotten", "q_k_v", (FORWARD, '"ulysses_forward": 3 *'))
answers.edit("output_forgotten", "three_gradients", (BACKWARD, '"ulysses_backward": 3 *'))
answers.edit(None, "keys_alone", (RING, "own * steps,"))
answers.edit("one_step_too_many", "n_steps", (RING, "2 * own * world_size,"))
answers.edit("one_step_too_many", "n_steps_back", (RING_BACK, "2 * own * 2 * world_size"))
answers.edit("gradients_not_home", "n_minus_1_twice", (RING_BACK, "2 * own * 2 * steps"))
answers.edit("no_gradients", "same_as_forward", (RING_BACK, "2 * own * steps"))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))


@answers.right
def step_by_step(batch, sequence, heads, head_size, world_size):
    tensor = 4 * batch * (sequence // world_size) * heads * head_size
    exchange = 3 * tensor - 3 * tensor / world_size + tensor * (1 - 1 / world_size)
    forward = sum(2 * tensor for _ in range(world_size - 1))
    return {
        "ring_forward": forward,
        "ring_backward": 2 * forward + 2 * tensor,
        "ulysses_forward": exchange,
        "ulysses_backward": exchange,
    }


@answers.right
def read_only(*sizes):
    return MappingProxyType(answers.reference()(*sizes))


@answers.right
def rounded(*sizes):
    return {name: round(value) for name, value in answers.reference()(*sizes).items()}


@answers.right
def by_name(batch, sequence, heads, head_size, world_size):
    """Has another name in addition."""
    sizes = batch, sequence, heads, head_size, world_size
    found = answers.reference()(*sizes)
    return found | {"ring": found["ring_forward"] + found["ring_backward"]}


answers.right_edit("another_order", (RING_BACK, "2 * own * world_size + 2 * own * steps"))
