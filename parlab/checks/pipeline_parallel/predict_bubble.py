"""Exercise `predict_bubble`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.pipeline_parallel import schedules
from parlab.checks.predictions import first_wrong, form, is_number
from parlab.pipeline import bubble, simulate

MISTAKES = Mistakes(
    share_of_the_step=(
        "{name}: that is by the idle share of the whole step. The bubble here is idle time over "
        "the time that ranks compute, as in the papers"
    ),
    ranks_for_gaps=(
        "{name}: a rank waits while the p − 1 others are at work, not p: it is one of them"
    ),
    twice=(
        "{name}: that counts filling and emptying as two whole gaps of a micro-batch. Filling "
        "waits for forward passes alone, emptying for backward passes: together one micro-batch "
        "for each of the p − 1 other ranks"
    ),
    not_shorter=(
        "interleaved: that is GPipe's. With v stages a rank each is v times shorter, and so is "
        "what a rank waits for at the beginning"
    ),
    all_stages=(
        "interleaved: a rank waits for the p − 1 ranks before it, a short stage each. It does not "
        "wait for its own later stages: it works on them"
    ),
    no_micro_batch="enough: where nothing idles one micro-batch is enough, and a step has one",
    not_whole="enough: that is no smallest m. It is where the bubble is a tenth, or just below",
)


@check_of(MISTAKES)
def predict_bubble(check: Check) -> str:
    """Compare with schedules that are played, and with the formula for interleaving."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        drawn = [(pick(2, 9), pick(2, 33), pick(2, 5)) for _ in range(3)]
        for ranks, micro_batches, chunks in [(4, 8, 2), *drawn, (1, 5, 3)]:
            trial.situation = f"p = {ranks}, m = {micro_batches}, v = {chunks}"
            right = played(ranks, micro_batches, chunks)
            predicted = trial.run(ranks, micro_batches, chunks)
            trial.require(
                lambda: form(predicted, right),
                lambda: misconception(predicted, right, ranks, micro_batches, chunks),
                lambda: first_wrong(predicted, right),
            )
    return "(p − 1)/m, which interleaving divides by v; ten times p − 1 micro-batches for a tenth"


def played(ranks: int, micro_batches: int, chunks: int) -> dict[str, float]:
    def of(pieces: int) -> float:
        return bubble(simulate(schedules.forward_first(ranks, 1, pieces)))

    whole, cut = of(1), of(micro_batches)
    enough = next(m for m in range(1, 10 * ranks + 1) if whole / m <= 0.1 + schedules.SLACK)
    return {"naive": whole, "gpipe": cut, "interleaved": cut / chunks, "enough": enough}


def misconception(
    predicted: dict[str, float],
    right: dict[str, float],
    ranks: int,
    micro_batches: int,
    chunks: int,
) -> Finding | None:
    pieces = micro_batches * chunks  # of which each takes a v-th of the time
    if is_number(predicted["enough"], 0):
        return MISTAKES.no_micro_batch()
    if ranks == 1:
        return None
    for name in ("naive", "gpipe", "interleaved"):
        got, value = predicted[name], right[name]
        if is_number(got, value):
            continue
        if is_number(got, value / (1 + value)):
            return MISTAKES.share_of_the_step(name=name)
        if is_number(got, value * ranks / (ranks - 1)):
            return MISTAKES.ranks_for_gaps(name=name)
        if name == "interleaved" and is_number(got, right["gpipe"]):
            return MISTAKES.not_shorter()
        if name == "interleaved" and is_number(got, value + (chunks - 1) * ranks / pieces):
            return MISTAKES.all_stages()
        if is_number(got, 2 * value):
            return MISTAKES.twice(name=name)
    got = predicted["enough"]
    if is_number(got, 9 * (ranks - 1)):
        return MISTAKES.share_of_the_step(name="enough")
    if is_number(got, 10 * ranks):
        return MISTAKES.ranks_for_gaps(name="enough")
    if is_number(got, right["enough"] - 1) or is_number(got, right["enough"] + 1):
        return None if is_number(got, right["enough"]) else MISTAKES.not_whole()
    return None
