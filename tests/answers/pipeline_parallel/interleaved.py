"""Answers to `interleaved`."""

from parlab.pipeline import backward, forward
from parlab_staff.answers import Answers

answers = Answers("interleaved")
reference = answers.reference()

BACKWARD = "backward(r + ranks * (chunks - 1 - chunk), i)"
WARM_UP = "2 * ahead + (chunks - 1) * ranks if chunks > 1 else ahead"
REFUSAL = "if micro_batches % ranks:"
TEXT = 'f"{micro_batches} micro-batches are no multiple of {ranks} ranks"'

answers.edit("deadlock", "forwards_order", (BACKWARD, "backward(r + ranks * chunk, i)"))
answers.edit("not_refused", "any_m", (REFUSAL, "if False:"))
answers.edit(None, "no_names", (TEXT, '"this does not divide"'), says="does not name 4")
answers.edit(None, "another_error", ("raise ValueError(", "raise AssertionError("))
answers.edit("deadlock", "warm_up_of_1f1b", (WARM_UP, "ahead"))
answers.edit("larger_bubble", "short_warm_up", (WARM_UP, "(chunks - 1) * ranks"))
answers.edit("holds_too_many", "as_gpipe", (WARM_UP, "len(forwards)"))
answers.edit("holds_too_many", "one_too_many", (WARM_UP, f"({WARM_UP}) + (chunks > 1)"))
answers.edit("returns_none", "no_return", ("    return schedule\n", ""))


@answers.wrong("incomplete", says="stage 1 is on rank 1")
def neighbors_together(ranks, micro_batches, chunks):
    """Rank r has stages r·v to r·v + v − 1."""
    schedule = reference(ranks, micro_batches, chunks)
    return [
        [action._replace(stage=rank * chunks + action.stage // ranks) for action in own]
        for rank, own in enumerate(schedule)
    ]


@answers.wrong(None, says="expected 2 and 8")
def chunks_ignored(ranks, micro_batches, chunks):
    reference(ranks, micro_batches, chunks)
    return answers.reference("one_f_one_b")(ranks, micro_batches)


@answers.right
def by_loops(ranks, micro_batches, chunks):
    if micro_batches % ranks != 0:
        raise ValueError(f"m = {micro_batches} and p = {ranks}: p has to divide m")
    groups = [range(first, first + ranks) for first in range(0, micro_batches, ranks)]
    schedule = []
    for r in range(ranks):
        fs = [forward(r + ranks * c, i) for g in groups for c in range(chunks) for i in g]
        bs = [backward(r + ranks * c, i) for g in groups for c in range(chunks)[::-1] for i in g]
        warm = ranks - 1 - r if chunks == 1 else 2 * (ranks - 1 - r) + (chunks - 1) * ranks
        turns = [a for pair in zip(fs[warm:], bs, strict=False) for a in pair]
        schedule.append(fs[:warm] + turns + bs[len(fs[warm:]) :])
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
    return [
        [action._replace(micro_batch=micro_batches - 1 - action.micro_batch) for action in own]
        for own in reference(ranks, micro_batches, chunks)
    ]


@answers.right
def shorter_warm_up(ranks, micro_batches, chunks):
    """As short as possible if messages take no time: each rank has one less than the one before."""
    schedule = reference(ranks, micro_batches, chunks)
    for r, own in enumerate(schedule):
        fs, bs = ([a for a in own if a.kind == kind] for kind in ("forward", "backward"))
        warm = min(ranks - r - 1 + (chunks - 1) * ranks, len(fs))
        turns = [a for pair in zip(fs[warm:], bs, strict=False) for a in pair]
        schedule[r] = fs[:warm] + turns + bs[len(fs) - warm :]
    return schedule
