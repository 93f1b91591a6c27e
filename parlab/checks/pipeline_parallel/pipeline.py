"""Exercise `pipeline`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parlab.checks.check import Check, check_of
from parlab.checks.endings import ending
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.pipeline_parallel import (
    left_alone,
    mistakes,
    order,
    runs,
    schedules,
    traffic,
    values,
)
from parlab.checks.pipeline_parallel.cases import Case, mean_square
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.pipeline import Schedule, backward, forward
from parlab.wording import ranks_text

STEPS = 2

MISTAKES = Mistakes(
    deadlock_accepted=(
        "a schedule in which ranks wait for each other for ever is accepted: `simulate(schedule)` "
        "raises for it, before a rank waits"
    ),
    not_refused="it accepts {what}: that is to be refused with a ValueError",
    refused_by_some=(
        "{what} are to be refused on all ranks, which all know the sizes: {ranks} will not go on, "
        "and the others do, and wait"
    ),
    sent_before_refusing="it refuses {what}, but only after it has sent something",
    **mistakes.MISTAKES.texts,
)


@check_of(MISTAKES)
def pipeline(check: Check) -> str:
    """Check GPipe's order, a tight one and random ones: gradients, order, memory and messages."""
    for number, trial in enumerate(check.trials()):
        for name, (case, steps) in _cases(trial).items():
            # Stages that hand over to each other on their rank are those of a rank alone.
            if number < 2 or trial.size == 1 or trial.draw.random() < 0.5:
                trial.situation = f"{trial.size} ranks, {name}, {case.samples} samples"
                _one(case, steps)
        _refusals(trial)
    return (
        "any schedule in its order, with the gradients and the loss of the whole batch; nothing is "
        f"held longer than it says, on 1 to {check.world_size} ranks; with tokens, and with frozen "
        "stages"
    )


def _cases(trial: Trial) -> dict[str, tuple[Case, int]]:
    """By name, with the number of steps: one of the first, since a second one tells less."""
    p, draw = trial.size, trial.draw
    all_forward, tight, short = (
        schedules.forward_first(p, 1, 4),
        schedules.few_in_flight(p, 9),
        schedules.forward_first(p, 1, 2),
    )
    first, second = ([0], [1]) if p > 1 else ([], [])
    mixed, several = schedules.any_order(draw, p, 1, 5), schedules.any_order(draw, p, 2, 3)
    return {
        "GPipe's order": (Case(trial, all_forward, 8), 1),
        "few in flight": (Case(trial, tight, 9), STEPS),
        "any order": (Case(trial, mixed, 13), STEPS),
        "any order, two stages a rank": (Case(trial, several, 7), STEPS),
        "one micro-batch": (Case(trial, schedules.forward_first(p, 3, 1), 2), STEPS),
        "tokens, in evaluation mode": (Case(trial, short, 5, tokens=True, training=False), 1),
        "the first stage frozen": (Case(trial, short, 3, frozen=first), 1),
        "the second stage frozen": (Case(trial, short, 3, frozen=second), 1),
    }


def _start(trial: Trial, schedule: Schedule) -> runs.Start:
    def start(share):  # type: ignore[no-untyped-def]
        made = trial.check.function(share, schedule, mean_square, trial.group)
        return made.step

    return start


def _one(case: Case, steps: int) -> None:
    trial, given = case.trial, [list(own) for own in case.schedule]
    seen = runs.run(trial, case, _start(trial, given), steps)

    def each(requirement: Callable[[Case, runs.Seen], Finding | None]) -> Finding | None:
        return next((found for one in seen if (found := requirement(case, one))), None)

    trial.require(
        lambda: None if given == case.schedule else COMMON.argument_changed(name="`schedule`"),
        lambda: each(left_alone.mode_stays),
        lambda: each(left_alone.frozen_stay),
        lambda: each(lambda case, one: left_alone.weights_stay(one)),
        lambda: each(left_alone.arguments_stay),
        lambda: each(order.once),
        lambda: each(values.gradients_are),
        lambda: each(values.loss_is),
        lambda: each(order.in_order),
        lambda: each(order.freed),
        lambda: traffic.messages(case, steps),
    )


def _refusals(trial: Trial) -> None:
    p = trial.size
    good = schedules.forward_first(p, 1, 3)
    case = Case(trial, good, 6)
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

    trial.situation = f"{trial.size} ranks"
    raised = trial.run_function(tried, seconds=runs.SECONDS, explain=partial(_by_some, what))

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


def _by_some(what: str, endings: dict[int, Ended]) -> Finding | None:
    """Some ranks are through, which is to have refused, and others wait."""
    returned = [rank for rank, ended in endings.items() if ended.kind == "returned"]
    told = ending(endings)
    if not returned or told is None:
        return None
    found = MISTAKES.refused_by_some(ranks=ranks_text(returned), what=what)
    return Finding(f"{found.text}\n{told.text}", found.mistake)
