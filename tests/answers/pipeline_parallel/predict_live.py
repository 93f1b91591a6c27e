"""Answers to `predict_live`."""

from types import MappingProxyType

from parlab.pipeline import live, simulate
from parlab_staff.answers import Answers

answers = Answers("predict_live")

LIVE = "min(ranks - rank, micro_batches)"
MESSAGES = "2 * micro_batches * (ranks * chunks - 1)"

answers.edit("grows_with_m", "as_gpipe", (LIVE, "micro_batches"))
answers.edit(None, "first_rank", (LIVE, "min(ranks, micro_batches)"))
answers.edit("one_less", "warm_up", (LIVE, "min(ranks - rank - 1, micro_batches)"))
answers.edit(None, "more_than_there_are", (LIVE, "ranks - rank"))
answers.edit("forward_alone", "activations", (MESSAGES, "micro_batches * (ranks * chunks - 1)"))
answers.edit("chunks_forgotten", "one_stage", (MESSAGES, "2 * micro_batches * (ranks - 1)"))
answers.edit(None, "gpipe_on_rank", ('"gpipe": micro_batches', '"gpipe": micro_batches - rank'))


@answers.right
def read_only(*sizes):
    return MappingProxyType(answers.reference()(*sizes))


@answers.right
def with_more(*sizes):
    return {"bytes": 0, **answers.reference()(*sizes)}


@answers.right
def from_schedules(ranks, micro_batches, chunks, rank):
    gpipe, turns = answers.reference("gpipe"), answers.reference("one_f_one_b")
    return {
        "gpipe": live(simulate(gpipe(ranks, micro_batches)))[rank],
        "one_f_one_b": live(simulate(turns(ranks, micro_batches)))[rank],
        "messages": micro_batches * (ranks * chunks - 1) * 2,
    }


@answers.right
def floats(*sizes):
    return {name: float(value) for name, value in answers.reference()(*sizes).items()}


@answers.right
def by_words(ranks, micro_batches, chunks, rank):
    behind = ranks - 1 - rank
    return {
        "gpipe": micro_batches,
        "one_f_one_b": behind + 1 if micro_batches > behind else micro_batches,
        "messages": sum(2 * micro_batches for _ in range(ranks * chunks - 1)),
    }
