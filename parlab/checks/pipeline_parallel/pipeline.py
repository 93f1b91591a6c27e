"""Exercise `pipeline`."""

from collections.abc import Callable
from typing import Any

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.pipeline_parallel import runs, schedules
from parlab.checks.trial import Trial
from parlab.pipeline import Schedule, backward, forward

STEPS = 2

MISTAKES = Mistakes(
    deadlock_accepted=(
        "a schedule in which ranks wait for each other for ever is accepted: `simulate(schedule)` "
        "raises for it, before a rank waits"
    ),
    not_refused="it accepts {what}: that is to be refused with a ValueError",
    sent_before_refusing="it refuses {what}, but only after it has sent something",
    **runs.MISTAKES.texts,
)


@check_of(MISTAKES)
def pipeline(check: Check) -> str:
    """Check GPipe's order, a tight one and random ones: gradients, order, memory and messages."""
    for number, trial in enumerate(check.trials()):
        p, draw = trial.size, trial.draw
        made = {
            "GPipe's order": (schedules.forward_first(p, 1, 4), 8),
            "few in flight": (schedules.few_in_flight(p, 9), 9),
            "any order": (schedules.any_order(draw, p, 1, 5), 13),
            "any order, two stages a rank": (schedules.any_order(draw, p, 2, 3), 7),
            "one micro-batch": (schedules.forward_first(p, 3, 1), 2),
        }
        for name, (schedule, samples) in made.items():
            if number < 2 or draw.random() < 0.5:
                trial.situation = f"{p} ranks, {name}, {samples} samples"
                # One step first: who waits in a second step tells less.
                _one(trial, schedule, samples, 1 if name == "GPipe's order" else STEPS)
        _refusals(trial)
    return (
        "any schedule in its order, with the gradients and the loss of the whole batch; nothing is "
        f"held longer than it says, on 1 to {check.world_size} ranks"
    )


def _start(trial: Trial, schedule: Schedule) -> runs.Start:
    def start(share):  # type: ignore[no-untyped-def]
        made = trial.check.function(share, schedule, runs.mean_square, trial.group)
        return made.step

    return start


def _one(trial: Trial, schedule: Schedule, samples: int, steps: int) -> None:
    case = runs.Case(trial, schedule, samples)
    seen = runs.run(trial, case, _start(trial, schedule), steps)

    def each(requirement: Callable[[runs.Case, runs.Seen], Finding | None]) -> Finding | None:
        return next((found for one in seen if (found := requirement(case, one))), None)

    trial.require(
        lambda: each(lambda case, one: runs.weights_stay(one)),
        lambda: each(runs.arguments_stay),
        lambda: each(runs.once),
        lambda: each(runs.gradients_are),
        lambda: each(runs.loss_is),
        lambda: each(runs.in_order),
        lambda: each(runs.freed),
        lambda: runs.messages(case, steps),
    )


def _refusals(trial: Trial) -> None:
    p = trial.size
    trial.situation = f"{p} ranks"
    good = schedules.forward_first(p, 1, 3)
    case = runs.Case(trial, good, 6)
    swapped = [list(own) for own in good]
    swapped[-1] = [backward(p - 1, 0), *(a for a in good[-1] if a != backward(p - 1, 0))]
    lacking = [list(own) for own in good]
    lacking[0].remove(forward(0, 1))
    other_ranks = schedules.forward_first(p + 1, 1, 3)
    other_stages = schedules.forward_first(p, 2, 3)
    refused = {
        "a schedule with a deadlock": swapped,
        "a schedule without F1 of rank 0": lacking,
        f"a schedule for {p + 1} ranks on {p}": other_ranks,
        "a schedule for two stages a rank, where a rank has one": other_stages,
    }
    if p > 1:
        # As many stages as there are, all on one rank.
        refused[f"a schedule for 1 rank with {p} stages, on {p} ranks"] = schedules.forward_first(
            1, p, 3
        )
    for what, schedule in refused.items():
        _refused(
            trial,
            lambda schedule=schedule: _start(trial, schedule)(case.share()),
            what,
            MISTAKES.deadlock_accepted() if schedule is swapped else None,
        )
    few = torch.zeros(2, case.widths[0]).double(), torch.zeros(2, case.widths[-1]).double()
    _refused(trial, lambda: _start(trial, good)(case.share())(*few), "3 micro-batches of 2 samples")


def _refused(
    trial: Trial, attempt: Callable[[], Any], what: str, accepted: Finding | None = None
) -> None:
    def tried() -> Exception | None:
        try:
            attempt()
        except NotImplementedError:
            raise  # a stub
        except Exception as error:
            return error
        return None

    raised = trial.run_function(tried, seconds=runs.SECONDS)

    def refused() -> Finding | None:
        if raised is None:
            return accepted or MISTAKES.not_refused(what=what)
        if not isinstance(raised, ValueError):
            return evidence(
                f"for {what} it raises {type(raised).__name__}: {raised}. A ValueError is asked for"
            )
        return None if str(raised) else evidence(f"the ValueError for {what} says nothing")

    trial.require(
        refused,
        lambda: MISTAKES.sent_before_refusing(what=what) if trial.calls[trial.rank] else None,
    )
