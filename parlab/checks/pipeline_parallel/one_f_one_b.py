"""Exercise `one_f_one_b`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.pipeline_parallel import schedules
from parlab.pipeline import Schedule, live, simulate

MISTAKES = Mistakes(
    gpipe_again=(
        "rank 0 holds the activations of all {m} micro-batches: that is GPipe under another name. "
        "A backward pass has to come before the last forward pass"
    ),
    one_too_many=(
        "rank {rank} holds {got} micro-batches where p − r = {right} are enough: its warm-up is "
        "one forward pass too long. The first pair of the turns begins with a forward pass"
    ),
    no_warm_up=(
        "every rank does forward and backward passes by turns from the start: rank 0 then waits "
        "for its first micro-batch to come back before it sends the second"
    ),
    **schedules.texts_of("deadlock", "incomplete", "other_size", "larger_bubble", "holds_too_many"),
)


@check_of(MISTAKES)
def one_f_one_b(check: Check) -> str:
    """Check completeness, deadlocks, the bubble and the activations held, for many sizes."""
    with check.trial() as trial:
        drawn = [(trial.draw.randrange(2, 9), trial.draw.randrange(2, 20)) for _ in range(4)]
        for ranks, micro_batches in [(4, 8), (3, 5), (4, 2), (1, 3), (3, 1), (5, 5), *drawn]:
            trial.situation = f"p = {ranks}, m = {micro_batches}"
            got = trial.run(ranks, micro_batches)
            trial.require(
                lambda: schedules.form(got),
                lambda: schedules.complete(got, (ranks, 1, micro_batches)),
                lambda: schedules.can_run(got),
                lambda: known(got, ranks, micro_batches),
                lambda: schedules.holds_at_most(got, lambda r: min(ranks - r, micro_batches)),
                lambda: schedules.bubble_is(got, (ranks - 1) / micro_batches),
            )
    return "the bubble of GPipe, with at most p − r micro-batches on rank r, and no deadlock"


def known(schedule: Schedule, ranks: int, micro_batches: int) -> Finding | None:
    if ranks == 1 or micro_batches <= ranks:
        return None
    held = [round(count) for count in live(simulate(schedule))]
    if held == [micro_batches] * ranks:
        return MISTAKES.gpipe_again(m=micro_batches)
    if held == [1] * ranks:
        return MISTAKES.no_warm_up()
    over = [count - (ranks - rank) for rank, count in enumerate(held)]
    if max(over) == 1 and over.count(1) >= ranks - 1:
        rank = over.index(1)
        return MISTAKES.one_too_many(rank=rank, got=held[rank], right=ranks - rank)
    return None
