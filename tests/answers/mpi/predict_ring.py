"""Answers to `predict_ring`."""

import math
from fractions import Fraction

from parlab_staff.answers import Answers

answers = Answers("predict_ring")

SHARE = '"share_ring": 2 * (world_size - 1) / world_size'

answers.edit("half_of_it", "half_of_the_rounds", ('"rounds_ring": 2 * (', '"rounds_ring": ('))
answers.edit(
    "half_of_it", "half_of_the_bytes", (SHARE, '"share_ring": (world_size - 1) / world_size')
)
answers.edit("whole_data_each_round", "whole_data", (SHARE, '"share_ring": 2 * (world_size - 1)'))
answers.edit("grows_with_ranks", "grows", (SHARE, '"share_ring": world_size'))
answers.edit("only_the_broadcast", "only_back", ('"rounds_tree": 2 * tree', '"rounds_tree": tree'))
answers.edit(None, "twice_the_data", (SHARE, '"share_ring": 2'), says="share_ring: you predicted 2")
answers.edit(
    None,
    "all_the_messages_of_the_tree",
    ('"share_tree": tree', '"share_tree": world_size - 1'),
    says="share_tree: you predicted 4",
)
answers.edit(
    None,
    "two_children",  # as many as rounds, with up to 4 ranks
    ('"share_tree": tree', '"share_tree": min(2, world_size - 1)'),
    says="share_tree: you predicted 2",
)
answers.edit("returns_none", "no_return", ("return {", "x = {"))


@answers.right
def with_a_logarithm(world_size):
    levels = math.ceil(math.log2(world_size))
    return {
        "rounds_ring": 2 * world_size - 2,
        "share_ring": 2 - 2 / world_size,
        "rounds_tree": levels + levels,
        "share_tree": levels,
    }


@answers.right
def in_fractions(world_size):
    exact = answers.reference()(world_size)
    return exact | {"share_ring": Fraction(2 * world_size - 2, world_size)}


@answers.right
def rounded_to_three_digits(world_size):
    return {name: round(number, 3) for name, number in answers.reference()(world_size).items()}


@answers.right
def in_floats(world_size):
    return {name: float(number) for name, number in answers.reference()(world_size).items()}


@answers.right
def sorted_by_name(world_size):
    return dict(sorted(answers.reference()(world_size).items()))
