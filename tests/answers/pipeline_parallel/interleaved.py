"""Answers to `interleaved`."""

from parlab.answers import Answers
from parlab.pipeline import backward, forward

answers = Answers("interleaved")
reference = answers.reference()

BACKWARD = "backward(r + ranks * (chunks - 1 - chunk), i)"
WARM_UP = "2 * ahead + (chunks - 1) * ranks if chunks > 1 else ahead"
REFUSAL = "if micro_batches % ranks:"

answers.edit("forwards_order", "forwards_order", (BACKWARD, "backward(r + ranks * chunk, i)"))
answers.edit("not_refused", "any_m", (REFUSAL, "if False:"))
answers.edit(
    None,
    "no_names",
    ('f"{micro_batches} micro-batches are no multiple of {ranks} ranks"', '"this does not divide"'),
)
answers.edit(None, "another_error", ("raise ValueError(", "raise AssertionError("))
answers.edit("deadlock", "warm_up_of_1f1b", (WARM_UP, "ahead"))
answers.edit("larger_bubble", "short_warm_up", (WARM_UP, "(chunks - 1) * ranks"))
answers.edit("holds_too_many", "as_gpipe", (WARM_UP, "len(forwards)"))
answers.edit("holds_too_many", "one_stage_alike", (WARM_UP, "2 * ahead + (chunks - 1) * ranks"))
answers.edit(
    "holds_too_many",
    "one_too_many",
    (WARM_UP, "2 * ahead + (chunks - 1) * ranks + 1 if chunks > 1 else ahead"),
)
answers.edit("returns_none", "no_return", ("    return schedule\n", ""))


@answers.wrong("blocks")
def neighbours_together(ranks, micro_batches, chunks):
    """Rank r has stages r·v to r·v + v − 1."""
    if micro_batches % ranks:
        raise ValueError(f"{micro_batches} {ranks}")

    def moved(action, rank):
        return action._replace(stage=rank * chunks + action.stage // ranks)

    schedule = reference(ranks, micro_batches, chunks)
    return [[moved(action, rank) for action in own] for rank, own in enumerate(schedule)]


@answers.wrong("incomplete")
def ends_with_the_turns(ranks, micro_batches, chunks):
    """Without the backward passes that are left after the last forward pass."""
    schedule = reference(ranks, micro_batches, chunks)
    for own in schedule:
        while len(own) > 1 and own[-1].kind == own[-2].kind == "backward":
            own.pop()
    return schedule


@answers.wrong("other_size")
def chunks_ignored(ranks, micro_batches, chunks):
    if micro_batches % ranks:
        raise ValueError(f"{micro_batches} {ranks}")
    return answers.reference("one_f_one_b")(ranks, micro_batches)


@answers.wrong("deadlock")
def all_micro_batches_first(ranks, micro_batches, chunks):
    """Groups are of all micro-batches, with the warm-up of groups of p."""
    if micro_batches % ranks:
        raise ValueError(f"{micro_batches} {ranks}")
    schedule = []
    for r in range(ranks):
        fs = [forward(r + ranks * c, i) for c in range(chunks) for i in range(micro_batches)]
        bs = [
            backward(r + ranks * c, i)
            for c in reversed(range(chunks))
            for i in range(micro_batches)
        ]
        ahead = ranks - r - 1
        warm = min(2 * ahead + (chunks - 1) * ranks if chunks > 1 else ahead, len(fs))
        turns = [a for pair in zip(fs[warm:], bs, strict=False) for a in pair]
        schedule.append(fs[:warm] + turns + bs[len(fs) - warm :])
    return schedule


@answers.right
def by_loops(ranks, micro_batches, chunks):
    if micro_batches % ranks != 0:
        raise ValueError(f"m = {micro_batches} and p = {ranks}: p has to divide m")
    schedule = []
    for r in range(ranks):
        groups = [range(first, first + ranks) for first in range(0, micro_batches, ranks)]
        fs = [forward(r + ranks * c, i) for g in groups for c in range(chunks) for i in g]
        bs = [forward(r + ranks * c, i) for g in groups for c in range(chunks)[::-1] for i in g]
        bs = [action._replace(kind="backward") for action in bs]
        ahead = ranks - 1 - r
        warm = ahead if chunks == 1 else 2 * ahead + (chunks - 1) * ranks
        own = fs[:warm]
        fs, done = fs[warm:], 0
        while fs:
            own += [fs.pop(0), bs[done]]
            done += 1
        schedule.append(own + bs[done:])
    return schedule


@answers.right
def one_stage_is_1f1b(ranks, micro_batches, chunks):
    if chunks == 1 and micro_batches % ranks == 0:
        return answers.reference("one_f_one_b")(ranks, micro_batches)
    return reference(ranks, micro_batches, chunks)


@answers.right
def as_tuples(ranks, micro_batches, chunks):
    return tuple(map(tuple, reference(ranks, micro_batches, chunks)))


@answers.right
def groups_from_the_end(ranks, micro_batches, chunks):
    """The micro-batches in the other order."""
    return [
        [action._replace(micro_batch=micro_batches - 1 - action.micro_batch) for action in own]
        for own in reference(ranks, micro_batches, chunks)
    ]


@answers.right
def with_a_message(ranks, micro_batches, chunks):
    try:
        return reference(ranks, micro_batches, chunks)
    except ValueError:
        raise ValueError(f"p={ranks}, m={micro_batches}") from None


@answers.right
def shorter_warm_up(ranks, micro_batches, chunks):
    """As short as it can be where messages take no time: each rank one less than the one before."""
    if micro_batches % ranks:
        raise ValueError(f"p = {ranks} does not divide m = {micro_batches}")
    schedule = []
    for r in range(ranks):
        own = reference(ranks, micro_batches, chunks)[r]
        fs = [action for action in own if action.kind == "forward"]
        bs = [action for action in own if action.kind == "backward"]
        warm = min(ranks - r - 1 + (chunks - 1) * ranks, len(fs))
        turns = [a for pair in zip(fs[warm:], bs, strict=False) for a in pair]
        schedule.append(fs[:warm] + turns + bs[len(fs) - warm :])
    return schedule
