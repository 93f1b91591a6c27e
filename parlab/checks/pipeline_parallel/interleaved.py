"""Exercise `interleaved`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.pipeline_parallel import _schedules

MISTAKES = Mistakes(
    **_schedules.texts_of("deadlock", "incomplete", "larger_bubble", "holds_too_many"),
)


@check_of(MISTAKES, ranks=1)
def interleaved(check: Check) -> str:
    """Check the bubble, the activations held, deadlocks, and refusals of other m."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        drawn = [(p := pick(2, 6), p * pick(1, 4), pick(2, 5)) for _ in range(4)]
        sizes = [(4, 8, 2), (2, 4, 3), (3, 3, 2), (4, 12, 1), (1, 3, 2), (1, 1, 1), *drawn]
        refused = [(4, 6, 2), (2, 5, 1), (3, 2, 2), (5, 9, 3)]
        cases = {f"p = {p}, m = {m}, v = {v}": (p, m, v) for p, m, v in [*sizes, *refused]}
        for _, (p, m, v) in trial.cases(cases):
            if m % p:
                error = require_refusal(
                    trial,
                    lambda: trial.check.function(p, m, v),
                    what="an m that is not a multiple of p",
                )
                trial.require(lambda: names(error, p, m))
                continue
            got = trial.run(p, m, v)
            trial.require(
                lambda: _schedules.is_schedule(got),
                lambda: _schedules.complete(got, p, v, m),
                lambda: _schedules.can_run(got),
                lambda: _schedules.bubble_at_most(got, (p - 1) / (v * m)),
                lambda: _schedules.holds_at_most(got, limits(p, m, v), "forward passes"),
            )
    return "a bubble of (p − 1)/(v m), no deadlock, and no m that p does not divide"


def names(error: str, *numbers: int) -> Finding | None:
    for number in numbers:
        if str(number) not in error:
            return observed(f"the ValueError says {error!r}: it does not name {number}")
    return None


def limits(p: int, m: int, v: int) -> list[int]:
    """Return the most that each rank may hold: its warm-up, and one more forward pass."""
    ahead = range(p - 1, -1, -1)
    return [min(1 + (2 * a + (v - 1) * p if v > 1 else a), m * v) for a in ahead]
