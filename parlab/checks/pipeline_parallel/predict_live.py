"""Exercise `predict_live`."""

from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.checks.pipeline_parallel import _schedules
from parlab.pipeline import needs

MISTAKES = Mistakes(
    grows_with_m=(
        "one_f_one_b: this is GPipe's number. Once the pipeline is full, 1F1B runs a backward pass "
        "before each new forward pass"
    ),
    one_less=(
        "one_f_one_b: this is the warm-up alone. The first forward pass after it comes before a "
        "backward pass frees anything"
    ),
    forward_alone="messages: each activation is sent forward, and its gradient is sent back",
    chunks_forgotten=(
        "messages: with v stages on each rank, the model is cut p·v − 1 times, and each cut lies "
        "between two ranks"
    ),
)


@check_of(MISTAKES, ranks=1)
def predict_live(check: Check) -> str:
    """Compare with simulated schedules."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        # In the first case, each mistake predicts a different number.
        sizes = [(4, 8, 2, 2), (6, 2, 3, 0), (8, 20, 1, 0)]
        sizes += [(p := pick(2, 8), pick(2, 16), pick(1, 4), pick(p)) for _ in range(3)]
        cases = {f"p = {p}, m = {m}, v = {v}, rank {r}": (p, m, v, r) for p, m, v, r in sizes}
        for _, size in trial.cases(cases):
            right = simulated(*size)
            predicted = trial.run(*size)
            require_numbers(trial, predicted, right, wrong(*size), "the right number")
    return "m, or p − r and no more than m; two messages a micro-batch at each of p·v − 1 cuts"


def simulated(p: int, m: int, v: int, rank: int) -> dict[str, float]:
    several = _schedules.forward_first(p, v, m)
    needed = [(r, n.stage % p) for r in range(p) for a in several[r] for n in needs(a, p * v)]
    return {
        "gpipe": _schedules.held(_schedules.forward_first(p, 1, m))[rank],
        "one_f_one_b": _schedules.held(_schedules.few_in_flight(p, m))[rank],
        "messages": sum(source != target for source, target in needed),
    }


def wrong(p: int, m: int, v: int, rank: int) -> Iterator[Wrong]:
    """Yield what each mistake predicts."""
    yield "one_f_one_b", m, MISTAKES.grows_with_m()
    yield "one_f_one_b", min(p - rank - 1, m), MISTAKES.one_less()
    yield "messages", m * (p * v - 1), MISTAKES.forward_alone()
    yield "messages", 2 * m * (p - 1), MISTAKES.chunks_forgotten()
