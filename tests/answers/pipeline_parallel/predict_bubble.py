"""Answers to `predict_bubble`."""

from types import MappingProxyType

from parlab.answers import Answers
from parlab.pipeline import bubble, simulate

answers = Answers("predict_bubble")

GPIPE = '"gpipe": (ranks - 1) / micro_batches'
INTERLEAVED = '"interleaved": (ranks - 1) / (chunks * micro_batches)'

answers.edit(
    "share_of_the_step",
    "of_the_step",
    (GPIPE, '"gpipe": (ranks - 1) / (micro_batches + ranks - 1)'),
)
answers.edit(
    "share_of_the_step", "naive_of_the_step", ('"naive": ranks - 1', '"naive": (ranks - 1) / ranks')
)
answers.edit(
    "share_of_the_step",
    "tenth_of_the_step",
    ("max(1, 10 * (ranks - 1))", "max(1, 9 * (ranks - 1))"),
    says="enough",
)
answers.edit("ranks_for_gaps", "p_over_m", (GPIPE, '"gpipe": ranks / micro_batches'))
answers.edit("twice", "both_ends", (GPIPE, '"gpipe": 2 * (ranks - 1) / micro_batches'))
answers.edit("not_shorter", "as_gpipe", (INTERLEAVED, '"interleaved": (ranks - 1) / micro_batches'))
answers.edit(
    "not_whole", "one_more", ("max(1, 10 * (ranks - 1))", "10 * (ranks - 1) + 1"), says="enough"
)
answers.edit(
    "ranks_for_gaps",
    "ten_p",
    ("max(1, 10 * (ranks - 1))", "10 * ranks"),
    says="enough",
)
answers.edit("no_micro_batch", "none_alone", ("max(1, 10 * (ranks - 1))", "10 * (ranks - 1)"))
answers.edit(
    "all_stages",
    "own_stages_too",
    (INTERLEAVED, '"interleaved": (ranks * chunks - 1) / (chunks * micro_batches)'),
)
answers.edit(None, "four_p", ("max(1, 10 * (ranks - 1))", "4 * ranks"))
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))
answers.edit(None, "none_missing", ('        "naive": ranks - 1,\n', ""))


@answers.right
def read_only(*sizes):
    return MappingProxyType(answers.reference()(*sizes))


@answers.right
def with_more(*sizes):
    return {"1f1b": 0, **answers.reference()(*sizes)}


@answers.right
def from_times(ranks, micro_batches, chunks):
    def bubble_of(pieces, part=1.0):
        step = 3 * (pieces + (ranks - 1) * part)
        return step / (3 * pieces) - 1

    enough = 1
    while bubble_of(enough) > 0.1 + 1e-9:
        enough += 1
    return {
        "naive": bubble_of(1),
        "gpipe": bubble_of(micro_batches),
        "interleaved": bubble_of(micro_batches, 1 / chunks),
        "enough": enough,
    }


@answers.right
def rounded(*sizes):
    return {name: round(value, 4) for name, value in answers.reference()(*sizes).items()}


@answers.right
def from_schedules(ranks, micro_batches, chunks):
    gpipe = answers.reference("gpipe")
    cut = bubble(simulate(gpipe(ranks, micro_batches)))
    whole = bubble(simulate(gpipe(ranks, 1)))
    enough = next(m for m in range(1, 1000) if whole <= m / 10 + 1e-9)
    return {"naive": whole, "gpipe": cut, "interleaved": cut / chunks, "enough": enough}
