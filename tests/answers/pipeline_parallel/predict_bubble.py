"""Answers to `predict_bubble`."""

from types import MappingProxyType

from parlab.pipeline import bubble, simulate
from parlab_staff.answers import Answers

answers = Answers("predict_bubble")
reference = answers.reference()

NAIVE = '"naive": ranks - 1'
GPIPE = '"gpipe": (ranks - 1) / micro_batches'
INTERLEAVED = '"interleaved": (ranks - 1) / (chunks * micro_batches)'
ENOUGH = "max(1, 10 * (ranks - 1))"

answers.edit(
    "share_of_the_step", "of_the_step", (GPIPE, f"{GPIPE[:-13]}(micro_batches + ranks - 1)")
)
answers.edit(
    "share_of_the_step", "tenth_of_the_step", (ENOUGH, "max(1, 9 * (ranks - 1))"), says="enough"
)
answers.edit("ranks_for_gaps", "p_over_m", (GPIPE, '"gpipe": ranks / micro_batches'))
answers.edit("ranks_for_gaps", "ten_p", (ENOUGH, "10 * ranks"), says="enough")
answers.edit("not_shorter", "as_gpipe", (INTERLEAVED, '"interleaved": (ranks - 1) / micro_batches'))
answers.edit(None, "none_alone", (ENOUGH, "10 * (ranks - 1)"), says="enough")
answers.edit("returns_none", "no_return", ("    return {", "    x = {"))
answers.edit(None, "naive_missing", (f"        {NAIVE},\n", ""))


@answers.right
def read_only(*sizes):
    return MappingProxyType(reference(*sizes))


@answers.right
def with_more(*sizes):
    return {"1f1b": 0, **reference(*sizes)}


@answers.right
def from_times(ranks, micro_batches, chunks):
    def bubble_of(pieces, part=1.0):
        return (pieces + (ranks - 1) * part) / pieces - 1

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
    return {name: round(value, 4) for name, value in reference(*sizes).items()}


@answers.right
def from_schedules(ranks, micro_batches, chunks):
    gpipe = answers.reference("gpipe")
    one, cut = (bubble(simulate(gpipe(ranks, m))) for m in (1, micro_batches))
    enough = next(m for m in range(1, 1000) if one <= m / 10 + 1e-9)
    return {"naive": one, "gpipe": cut, "interleaved": cut / chunks, "enough": enough}
