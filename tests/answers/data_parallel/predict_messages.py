"""Answers to `predict_messages`."""

from parlab import models
from parlab_staff.answers import Answers

answers = Answers("predict_messages")

GPT_BYTES = 4 * models.parameter_count(models.GPT())

answers.edit("tied_twice", "tied_message_twice", ('"messages": 28', '"messages": 29'))
answers.edit("elements", "elements", ("4 * models", "models"))
answers.edit(
    "fewer_bytes", "fewer_bytes", ('"bytes_flat": gradient', '"bytes_flat": 1 / 28 * gradient')
)
answers.edit("all_ranks", "all_ranks", ('"bytes": gradient', '"bytes": world_size * gradient'))
answers.edit("half_of_the_ring", "half_of_the_ring", ("2 * (world", "1 * (world"))
answers.edit(None, "whole_buffer", (" / world_size * grad", " * grad"), says="4 times what was")
answers.edit(
    None, "for_four_ranks", ("2 * (world_size - 1) / world_size", "1.5"), says="for 2 ranks"
)
answers.edit(None, "zeros", ('"messages": 28', '"messages": 0'), says="0 times")
answers.edit(None, "not_a_number", ('"messages": 28', '"messages": float("nan")'), says="nan")
answers.edit(None, "left_out", ('"messages": 28,', ""), says="no number is given")
answers.edit("wrong_type", "text", ('"messages": 28', '"messages": "28"'))
answers.edit("wrong_type", "a_list", ("return {", "return [{"), ("bytes,\n    }", "bytes,\n    }]"))
answers.edit("returns_none", "no_return", ("return {", "x = {"))


@answers.right
def in_plain_numbers(world_size):
    ring = [0, 0, 1.0, 4 / 3, 1.5, 1.6, 5 / 3, 12 / 7][world_size] * GPT_BYTES
    sent = {"bytes": GPT_BYTES, "bytes_flat": GPT_BYTES, "bytes_ring": ring}
    return {"messages": 28.0, "messages_flat": 1.0, **sent}


@answers.right
def counted(world_size):
    weights = list(models.GPT().parameters())
    total = sum(weight.nbytes for weight in weights)
    return {
        "messages": len(weights),
        "messages_flat": 1,
        "bytes": total,
        "bytes_flat": total,
        "bytes_ring": 2 * total - 2 * total / world_size,
        "more": 0,
    }


@answers.right
def roughly(world_size):
    exact = answers.reference()(world_size)
    return {name: v if v < 100 else 1.004 * v for name, v in exact.items()}


@answers.right
def as_whole_numbers(world_size):
    return {name: int(value) for name, value in answers.reference()(world_size).items()}


@answers.right
def in_another_order(world_size):
    return dict(reversed(answers.reference()(world_size).items()))
