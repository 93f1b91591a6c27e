"""Exercise `gpipe`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.pipeline_parallel import schedules
from parlab.pipeline import Schedule, text

MISTAKES = Mistakes(
    backward_too_soon=(
        "rank {rank} does {backward} before {forward}: with GPipe all forward passes of a rank "
        "come first. (A backward pass as soon as it can be is the next exercise)"
    ),
    one_list=(
        "it is one list for each micro-batch, or for each stage of the time: there is to be one "
        "for each of the {ranks} ranks"
    ),
    **schedules.texts_of("incomplete", "other_size", "larger_bubble"),
)


@check_of(MISTAKES)
def gpipe(check: Check) -> str:
    """Check the order of passes, completeness and the bubble, for many sizes."""
    with check.trial() as trial:
        drawn = [(trial.draw.randrange(2, 9), trial.draw.randrange(2, 20)) for _ in range(3)]
        for ranks, micro_batches in [(4, 8), (3, 5), (4, 2), (1, 3), (3, 1), (1, 1), *drawn]:
            trial.situation = f"p = {ranks}, m = {micro_batches}"
            got = trial.run(ranks, micro_batches)
            trial.require(
                lambda: schedules.form(got),
                lambda: (
                    MISTAKES.one_list(ranks=ranks)
                    if len(got) == micro_batches != ranks
                    else schedules.complete(got, (ranks, 1, micro_batches))
                ),
                lambda: forward_first(got, ranks),
                # No deadlock is left then: no forward pass waits for a backward pass.
                lambda: schedules.bubble_is(got, (ranks - 1) / micro_batches),
            )
    return "all forward passes, then all backward passes, with a bubble of (p − 1)/m"


def forward_first(schedule: Schedule, ranks: int) -> Finding | None:
    for rank, own in enumerate(schedule):
        seen = None
        for action in own:
            if action.kind == "backward":
                seen = seen or action
            elif seen is not None:
                return MISTAKES.backward_too_soon(
                    rank=rank, backward=text(seen, ranks), forward=text(action, ranks)
                )
    return None
