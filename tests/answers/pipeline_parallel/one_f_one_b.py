"""Answers to `one_f_one_b`."""

from parlab.answers import Answers
from parlab.pipeline import backward, forward

answers = Answers("one_f_one_b")
reference = answers.reference()

WARM_UP = "warm_up = min(ranks - r - 1, micro_batches)"

answers.edit("gpipe_again", "relabelled", (WARM_UP, "warm_up = micro_batches"))
answers.edit("one_too_many", "long_warm_up", (WARM_UP, "warm_up = min(ranks - r, micro_batches)"))
answers.edit("no_warm_up", "turns_at_once", (WARM_UP, "warm_up = 0"))
answers.edit(
    "larger_bubble",
    "short_warm_up",
    (WARM_UP, "warm_up = min(max(ranks - r - 2, 0), micro_batches)"),
)
answers.edit(
    "deadlock",
    "backward_first",
    ("actions += [action, backwards[number]]", "actions += [backwards[number], action]"),
)
answers.edit("incomplete", "no_rest", ("actions + backwards[micro_batches - warm_up :]", "actions"))
answers.edit("deadlock", "later_ranks_warm_up", (WARM_UP, "warm_up = min(r, micro_batches)"))
answers.edit("incomplete", "few_forgotten", (WARM_UP, "warm_up = ranks - r - 1"))
answers.edit("returns_none", "no_return", ("    return schedule\n", ""))


@answers.wrong("holds_too_many")
def twice_the_warm_up(ranks, micro_batches):
    """As for interleaving, where there is nothing to interleave."""
    schedule = []
    for r in range(ranks):
        fs = [forward(r, i) for i in range(micro_batches)]
        bs = [backward(r, i) for i in range(micro_batches)]
        warm = min(2 * (ranks - r - 1), micro_batches)
        turns = [a for pair in zip(fs[warm:], bs, strict=False) for a in pair]
        schedule.append(fs[:warm] + turns + bs[micro_batches - warm :])
    return schedule


@answers.wrong("other_size")
def as_many_as_ranks(ranks, micro_batches):
    """The warm-up's micro-batches come on top of the m."""
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
    return [
        sorted(
            [forward(r, i) for i in range(micro_batches)]
            + [backward(r, i) for i in range(micro_batches)],
            key=lambda a, r=r: (
                2 * a.micro_batch + (2 * (ranks - r) - 1 if a.kind == "backward" else 0)
            ),
        )
        for r in range(ranks)
    ]


@answers.right
def from_the_last_micro_batch(ranks, micro_batches):
    """The micro-batches in the other order."""
    return [
        [action._replace(micro_batch=micro_batches - 1 - action.micro_batch) for action in own]
        for own in reference(ranks, micro_batches)
    ]


@answers.right
def as_tuples(ranks, micro_batches):
    return tuple(map(tuple, reference(ranks, micro_batches)))


@answers.right
def as_interleaved(ranks, micro_batches):
    """Three phases by slices."""
    schedule = []
    for r in range(ranks):
        ahead = min(ranks - 1 - r, micro_batches)
        own = [forward(r, i) for i in range(ahead)]
        for i in range(micro_batches):
            if i + ahead < micro_batches:
                own.append(forward(r, i + ahead))
            own.append(backward(r, i))
        schedule.append(own)
    return schedule
