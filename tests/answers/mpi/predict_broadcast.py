"""Answers to `predict_broadcast`."""

import math

from parlab_staff.answers import Answers

answers = Answers("predict_broadcast")

answers.edit(
    "one_round_each", "one_round_each", ('"rounds_tree": rounds', '"rounds_tree": world_size - 1')
)
answers.edit(
    "rounded_down",
    "rounded_down",
    ("(world_size - 1).bit_length()", "world_size.bit_length() - 1"),
)
answers.edit(
    "root_sends_all",
    "root_sends_all",
    ('"messages_root": rounds', '"messages_root": world_size - 1'),
)
answers.edit(
    "fewer_messages",
    "as_many_as_rounds",
    ('"messages_tree": world_size - 1', '"messages_tree": rounds'),
)
answers.edit(
    None,
    "one_message_too_many",
    ('"messages_tree": world_size - 1', '"messages_tree": world_size'),
    says="messages_tree: you predicted 5",
)
answers.edit(
    None,
    "two_children",  # as many as rounds, with up to 4 ranks
    ('"messages_root": rounds', '"messages_root": min(2, world_size - 1)'),
    says="messages_root: you predicted 2",
)
answers.edit("wrong_type", "text", ('"rounds_tree": rounds', '"rounds_tree": str(rounds)'))
answers.edit("returns_none", "no_return", ("return {", "x = {"))


@answers.right
def with_a_logarithm(world_size):
    rounds = math.ceil(math.log2(world_size))
    others = world_size - 1
    return {
        "rounds_one_by_one": others,
        "rounds_tree": rounds,
        "messages_tree": others,
        "messages_root": rounds,
    }


@answers.right
def counted_round_by_round(world_size):
    reached, rounds, messages = 1, 0, 0
    while reached < world_size:
        messages += min(reached, world_size - reached)
        reached, rounds = 2 * reached, rounds + 1
    return {
        "rounds_one_by_one": world_size - 1,
        "rounds_tree": rounds,
        "messages_tree": messages,
        "messages_root": rounds,
    }


@answers.right
def with_more_in_it(world_size):
    return answers.reference()(world_size) | {"messages_one_by_one": world_size - 1}


@answers.right
def in_floats(world_size):
    return {name: float(number) for name, number in answers.reference()(world_size).items()}


@answers.right
def sorted_by_name(world_size):
    return dict(sorted(answers.reference()(world_size).items()))
