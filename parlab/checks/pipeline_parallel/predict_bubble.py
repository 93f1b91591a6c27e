"""Exercise `predict_bubble`."""

from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.checks.pipeline_parallel import _schedules
from parlab.pipeline import bubble, simulate

MISTAKES = Mistakes(
    share_of_the_step=(
        "{name}: this is computed from the idle share of the whole step. The bubble is idle time "
        "divided by the time that ranks compute"
    ),
    ranks_for_gaps="{name}: a rank waits for the p − 1 other ranks, not for p",
    not_shorter=(
        "interleaved: this is GPipe's bubble. Each of the v stages of a rank is v times shorter, "
        "and so is the wait for the first of them"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_bubble(check: Check) -> str:
    """Compare with simulated schedules. Interleaving divides the bubble by v."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        # In the first case, each mistake predicts a different number.
        sizes = [(4, 8, 3), *((pick(2, 9), pick(2, 33), pick(2, 5)) for _ in range(3)), (1, 5, 3)]
        for _, size in trial.cases({f"p = {p}, m = {m}, v = {v}": (p, m, v) for p, m, v in sizes}):
            right = simulated(*size)
            predicted = trial.run(*size)
            require_numbers(trial, predicted, right, wrong(right, *size), "the right number")
    return "(p − 1)/m, which interleaving divides by v; ten times p − 1 micro-batches for a tenth"


def simulated(p: int, m: int, v: int) -> dict[str, float]:
    one, cut = (bubble(simulate(_schedules.forward_first(p, 1, n))) for n in (1, m))
    enough = next(n for n in range(1, 10 * p + 1) if one / n <= 0.1 + _schedules.SLACK)
    return {"naive": one, "gpipe": cut, "interleaved": cut / v, "enough": enough}


def wrong(right: dict[str, float], p: int, m: int, v: int) -> Iterator[Wrong]:
    """Yield what each mistake predicts."""
    share, ranks = MISTAKES.share_of_the_step, MISTAKES.ranks_for_gaps
    for name, pieces in {"naive": 1, "gpipe": m, "interleaved": v * m}.items():
        yield name, right[name] / (1 + right[name]), share(name=name)
        yield name, p / pieces, ranks(name=name)
    yield "interleaved", right["gpipe"], MISTAKES.not_shorter()
    yield "enough", max(1, 9 * (p - 1)), share(name="enough")
    yield "enough", 10 * p, ranks(name="enough")
