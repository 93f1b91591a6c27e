"""Exercise `interleaved`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.pipeline_parallel import schedules
from parlab.checks.trial import Trial
from parlab.pipeline import Action, Schedule, text

MISTAKES = Mistakes(
    not_refused=(
        "it accepts m = {micro_batches} on p = {ranks} ranks: micro-batches go through the stages "
        "in groups of p, so other numbers are to be refused, with a ValueError that names both"
    ),
    forwards_order=(
        "rank {rank} begins its backward passes with {got}: gradients come from the end of the "
        "model, so its last stage, {right}, is first. Backward goes through the stages in the "
        "other direction"
    ),
    blocks=(
        "rank {rank} has stage {got}: stages that follow each other are on ranks that follow each "
        "other, stage s on rank s % p. With neighbours on one rank nothing gets shorter"
    ),
    **schedules.texts_of("deadlock", "incomplete", "other_size", "larger_bubble", "holds_too_many"),
)


@check_of(MISTAKES)
def interleaved(check: Check) -> str:
    """Check the bubble, the activations held and deadlocks; refusals of any other m."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        drawn = [(p := pick(2, 6), p * pick(1, 4), pick(2, 5)) for _ in range(4)]
        sizes = [(4, 8, 2), (2, 4, 3), (3, 3, 2), (4, 12, 1), (1, 3, 2), (1, 1, 1), *drawn]
        for ranks, micro_batches, chunks in sizes:
            trial.situation = f"p = {ranks}, m = {micro_batches}, v = {chunks}"
            got = trial.run(ranks, micro_batches, chunks)

            def most(rank: int, p: int = ranks, m: int = micro_batches, v: int = chunks) -> int:
                ahead = p - rank - 1
                return min(2 * ahead + (v - 1) * p + 1 if v > 1 else ahead + 1, m * v)

            trial.require(
                lambda: schedules.form(got),
                lambda: placed(got, ranks),
                lambda: schedules.complete(got, (ranks, chunks, micro_batches)),
                lambda: backward_from_the_end(got, ranks, chunks),
                lambda: schedules.can_run(got),
                lambda: schedules.bubble_is(got, (ranks - 1) / (chunks * micro_batches)),
                lambda: schedules.holds_at_most(got, most, "stages' micro-batches"),
            )
        for ranks, micro_batches, chunks in [(4, 6, 2), (2, 5, 1), (3, 2, 2), (5, 9, 3)]:
            trial.situation = f"p = {ranks}, m = {micro_batches}, v = {chunks}"
            _refusal(trial, ranks, micro_batches, chunks)
    return "a bubble of (p − 1)/(v m), no deadlock, and no m that p does not divide"


def placed(schedule: Schedule, ranks: int) -> Finding | None:
    for rank, own in enumerate(schedule):
        for action in own:
            if action.stage % ranks != rank:
                return MISTAKES.blocks(rank=rank, got=action.stage)
    return None


def backward_from_the_end(schedule: Schedule, ranks: int, chunks: int) -> Finding | None:
    for rank, own in enumerate(schedule):
        first: Action = next(action for action in own if action.kind == "backward")
        last = rank + ranks * (chunks - 1)
        if first.stage != last:
            return MISTAKES.forwards_order(rank=rank, got=text(first), right=last)
    return None


def _refusal(trial: Trial, ranks: int, micro_batches: int, chunks: int) -> None:
    def attempt() -> Exception | None:
        try:
            trial.check.function(ranks, micro_batches, chunks)
        except NotImplementedError:
            raise  # a stub
        except Exception as error:
            return error
        return None

    raised = trial.run_function(attempt)
    trial.require(lambda: refused(raised, ranks, micro_batches))


def refused(raised: Exception | None, ranks: int, micro_batches: int) -> Finding | None:
    if raised is None:
        return MISTAKES.not_refused(ranks=ranks, micro_batches=micro_batches)
    if not isinstance(raised, ValueError):
        return evidence(
            f"it raises {type(raised).__name__}: {raised}. A ValueError is asked for, since p does "
            "not divide m"
        )
    if str(ranks) not in str(raised) or str(micro_batches) not in str(raised):
        return evidence(
            f"the ValueError says {str(raised)!r}: it is to name both m = {micro_batches} and "
            f"p = {ranks}"
        )
    return None
