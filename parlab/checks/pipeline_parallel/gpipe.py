"""Exercise `gpipe`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.pipeline_parallel import _schedules
from parlab.pipeline import Schedule, texts

MISTAKES = Mistakes(
    backward_too_soon=(
        "rank {rank} runs {actions}: with GPipe, all forward passes of a rank come before its "
        "first backward pass"
    ),
    **_schedules.texts_of("incomplete", "larger_bubble"),
)


@check_of(MISTAKES, ranks=1)
def gpipe(check: Check) -> str:
    """Check the order of passes, completeness, and the bubble, for many sizes."""
    with check.trial() as trial:
        drawn = [(trial.draw.randrange(2, 9), trial.draw.randrange(2, 20)) for _ in range(3)]
        sizes = [(4, 8), (3, 5), (4, 2), (1, 3), (3, 1), (1, 1), *drawn]
        for _, (p, m) in trial.cases({f"p = {p}, m = {m}": (p, m) for p, m in sizes}):
            got = trial.run(p, m)
            trial.require(
                lambda: _schedules.is_schedule(got),
                lambda: _schedules.complete(got, p, 1, m),
                lambda: forward_first(got),
                # A deadlock is impossible now, because no forward pass waits for a backward pass.
                lambda: _schedules.bubble_at_most(got, (p - 1) / m),
            )
    return "all forward passes, then all backward passes, with a bubble of (p − 1)/m"


def forward_first(schedule: Schedule) -> Finding | None:
    for rank, own in enumerate(schedule):
        kinds = [action.kind for action in own]
        if kinds != sorted(kinds, reverse=True):
            return MISTAKES.backward_too_soon(rank=rank, actions=texts(own, len(schedule)))
    return None
