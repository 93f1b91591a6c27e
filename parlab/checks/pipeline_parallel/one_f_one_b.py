"""Exercise `one_f_one_b`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.pipeline_parallel import _schedules
from parlab.pipeline import Schedule

MISTAKES = Mistakes(
    gpipe_again=(
        "every rank holds the activations of all micro-batches, as with GPipe. Run the first "
        "backward pass before the last forward pass"
    ),
    one_too_many=(
        "every rank holds one micro-batch more than p − r: its warm-up is one forward pass too "
        "long. After the warm-up, each pair begins with a forward pass"
    ),
    no_warm_up=(
        "every rank alternates forward and backward passes from the start. Rank 0 then waits until "
        "its first micro-batch comes back before it sends the second"
    ),
    **_schedules.texts_of("deadlock", "incomplete", "larger_bubble", "holds_too_many"),
)


@check_of(MISTAKES, ranks=1)
def one_f_one_b(check: Check) -> str:
    """Check completeness, deadlocks, the bubble and the activations held, for many sizes."""
    with check.trial() as trial:
        drawn = [(trial.draw.randrange(2, 9), trial.draw.randrange(2, 20)) for _ in range(4)]
        sizes = [(4, 8), (3, 5), (4, 2), (1, 3), (3, 1), (5, 5), *drawn]
        for _, (p, m) in trial.cases({f"p = {p}, m = {m}": (p, m) for p, m in sizes}):
            got = trial.run(p, m)
            trial.require(
                lambda: _schedules.is_schedule(got),
                lambda: _schedules.complete(got, p, 1, m),
                lambda: _schedules.can_run(got),
                lambda: known(got, p, m),
                lambda: _schedules.holds_at_most(got, [min(p - r, m) for r in range(p)]),
                lambda: _schedules.bubble_at_most(got, (p - 1) / m),
            )
    return "the bubble of GPipe, with at most p − r micro-batches on rank r, and no deadlock"


def known(schedule: Schedule, p: int, m: int) -> Finding | None:
    """Name the mistake that explains the micro-batches held on each rank."""
    variants = {
        "gpipe_again": [m] * p,
        "one_too_many": [min(p - r + 1, m) for r in range(p)],
        "no_warm_up": [1] * p,
    }
    if 1 < p < m:  # else some of these are the same
        for key, value in variants.items():
            if _schedules.held(schedule) == value:
                return getattr(MISTAKES, key)()
    return None
