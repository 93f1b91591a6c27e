"""Answers to `one_f_one_b`."""

from parlab.pipeline import backward, forward
from parlab_staff.answers import Answers

answers = Answers("one_f_one_b")
reference = answers.reference()

WARM_UP = "warm_up = min(ranks - r - 1, micro_batches)"
REST = "schedule.append(actions + backwards[micro_batches - warm_up :])"

answers.edit("holds_too_many", "relabelled", (WARM_UP, "warm_up = micro_batches"))
answers.edit("holds_too_many", "long_warm_up", (WARM_UP, "warm_up = min(ranks - r, micro_batches)"))
answers.edit("larger_bubble", "turns_at_once", (WARM_UP, "warm_up = 0"))
answers.edit(
    "deadlock",
    "backward_first",
    ("actions += [action, backwards[number]]", "actions += [backwards[number], action]"),
)
answers.edit("incomplete", "no_rest", (REST, "schedule.append(actions)"))
answers.edit(
    "incomplete",
    "warm_up_beyond_the_last",
    (WARM_UP, "warm_up = ranks - r - 1"),
    (
        "forward(r, i) for i in range(micro_batches)",
        "forward(r, i) for i in range(max(micro_batches, ranks - r - 1))",
    ),
    says="numbered from 0 to 1",
)
answers.edit("returns_none", "no_return", ("    return schedule\n", ""))


@answers.wrong("incomplete")
def as_many_as_ranks(ranks, micro_batches):
    """The micro-batches of the warm-up come on top of the m."""
    return reference(ranks, micro_batches + ranks - 1)


@answers.right
def by_counting(ranks, micro_batches):
    """A forward pass while fewer than p − r are in flight; else a backward pass."""
    schedule = []
    for r in range(ranks):
        own, f, b = [], 0, 0
        while b < micro_batches:
            if f < micro_batches and f - b < ranks - r:
                own.append(forward(r, f))
                f += 1
            else:
                own.append(backward(r, b))
                b += 1
        schedule.append(own)
    return schedule


@answers.right
def by_sorting(ranks, micro_batches):
    """Each action has its place on the rank's clock."""
    schedule = []
    for r in range(ranks):
        late = 2 * (ranks - r) - 1
        actions = [(2 * i, forward(r, i)) for i in range(micro_batches)]
        actions += [(2 * i + late, backward(r, i)) for i in range(micro_batches)]
        schedule.append([action for _, action in sorted(actions)])
    return schedule


@answers.right
def as_tuples(ranks, micro_batches):
    return tuple(map(tuple, reference(ranks, micro_batches)))


@answers.right
def from_the_last_micro_batch(ranks, micro_batches):
    return [
        [action._replace(micro_batch=micro_batches - 1 - action.micro_batch) for action in own]
        for own in reference(ranks, micro_batches)
    ]


@answers.right
def by_slices(ranks, micro_batches):
    schedule = []
    for r in range(ranks):
        ahead = min(ranks - 1 - r, micro_batches)
        own = [forward(r, i) for i in range(ahead)]
        for i in range(micro_batches):
            own += [forward(r, i + ahead)] * (i + ahead < micro_batches) + [backward(r, i)]
        schedule.append(own)
    return schedule
