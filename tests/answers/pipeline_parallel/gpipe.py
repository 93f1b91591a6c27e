"""Answers to `gpipe`."""

from parlab.pipeline import Action, backward, forward
from parlab_staff.answers import Answers

answers = Answers("gpipe")
reference = answers.reference()

answers.edit(
    "incomplete", "no_backward", ("        + [backward(r, i) for i in range(micro_batches)]\n", "")
)
answers.edit(
    "wrong_type",
    "flat",
    ("return [\n", "return sum([\n"),
    ("        for r in range(ranks)\n    ]", "        for r in range(ranks)\n    ], [])"),
    says="an entry of the schedule is an Action",
)
answers.edit(
    "wrong_type",
    "plain_tuples",
    ("[forward(r, i) for", '[("forward", r, i) for'),
    says="an entry of a rank's list is a tuple",
)
answers.edit("returns_none", "no_return", ("    return [", "    x = ["))


@answers.wrong("backward_too_soon")
def by_turns(ranks, micro_batches):
    return [
        [a for i in range(micro_batches) for a in (forward(r, i), backward(r, i))]
        for r in range(ranks)
    ]


@answers.wrong("larger_bubble", says="Rank 3 runs F7 F6")
def other_order_on_the_last(ranks, micro_batches):
    schedule = reference(ranks, micro_batches)
    schedule[-1][:micro_batches] = schedule[-1][:micro_batches][::-1]
    return schedule


@answers.wrong(None, says="7 micro-batches, expected 1 and 8")
def counted_from_one(ranks, micro_batches):
    return reference(ranks, micro_batches - 1)


@answers.wrong(None, says="for 8 ranks, expected 4")
def by_micro_batch(ranks, micro_batches):
    return [
        [forward(r, i) for r in range(ranks)] + [backward(r, i) for r in reversed(range(ranks))]
        for i in range(micro_batches)
    ]


@answers.right
def backward_from_the_last(ranks, micro_batches):
    """As in the paper's picture: the last micro-batch comes back first."""
    pieces = range(micro_batches)
    return [
        [*(forward(r, i) for i in pieces), *(backward(r, i) for i in reversed(pieces))]
        for r in range(ranks)
    ]


@answers.right
def all_from_the_last(ranks, micro_batches):
    pieces = range(micro_batches)[::-1]
    return [
        [*(forward(r, i) for i in pieces), *(backward(r, i) for i in pieces)] for r in range(ranks)
    ]


@answers.right
def by_hand(ranks, micro_batches):
    kinds, pieces = ("forward", "backward"), range(micro_batches)
    return [[Action(kind, r, i) for kind in kinds for i in pieces] for r in range(ranks)]


@answers.right
def tuples_of_actions(ranks, micro_batches):
    return tuple(tuple(own) for own in reference(ranks, micro_batches))


@answers.right
def shuffled_alike(ranks, micro_batches):
    order = sorted(range(micro_batches), key=lambda i: (i * 7919) % 101)
    return [[forward(r, i) for i in order] + [backward(r, i) for i in order] for r in range(ranks)]
