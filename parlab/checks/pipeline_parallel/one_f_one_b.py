"""Exercise `one_f_one_b`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.pipeline_parallel import _schedules

MISTAKES = Mistakes(
    **_schedules.texts_of("deadlock", "incomplete", "larger_bubble", "holds_too_many"),
)


@check_of(MISTAKES, ranks=1)
def one_f_one_b(check: Check) -> str:
    """Check completeness, deadlocks, the bubble, and the activations held, for many sizes."""
    with check.trial() as trial:
        drawn = [(trial.draw.randrange(2, 9), trial.draw.randrange(2, 20)) for _ in range(4)]
        sizes = [(4, 8), (3, 5), (4, 2), (1, 3), (3, 1), (5, 5), *drawn]
        for _, (p, m) in trial.cases({f"p = {p}, m = {m}": (p, m) for p, m in sizes}):
            got = trial.run(p, m)
            trial.require(
                lambda: _schedules.is_schedule(got),
                lambda: _schedules.complete(got, p, 1, m),
                lambda: _schedules.can_run(got),
                lambda: _schedules.holds_at_most(got, [min(p - r, m) for r in range(p)]),
                lambda: _schedules.bubble_at_most(got, (p - 1) / m),
            )
    return "the bubble of GPipe, with at most p − r micro-batches on rank r, and no deadlock"
