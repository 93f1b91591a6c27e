"""Exercise `pipeline`."""

from collections.abc import Callable
from functools import partial

import torch

from parlab.checks.base.call_outcome import idle_ranks_left
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.pipeline_parallel import _requirements, _schedules, _steps
from parlab.checks.pipeline_parallel._models import Case, mean_square
from parlab.pipeline import Schedule, backward, forward
from parlab.pipeline.stages import Share

MISTAKES = Mistakes(
    refused_by_some=(
        "some ranks refuse the batch, and the others wait for them. Refuse it on all ranks, which "
        "all know its size"
    ),
    **_requirements.PIPELINE_MISTAKES.texts,
)


@check_of(MISTAKES)
def pipeline(check: Check) -> str:
    """Check gradients, order, memory, and messages, in GPipe's, 1F1B's, and random orders."""
    for number, trial in enumerate(check.trials()):
        for _, (make, count) in trial.cases(_cases(trial)):
            case = make()
            # Between one and all ranks, stages interact in no new way, so try only some cases.
            if number < 2 or trial.size == 1 or trial.draw.random() < 0.5:
                schedule = [list(own) for own in case.schedule]
                steps = _steps.run(case, partial(_make_step, trial, schedule), count)
                trial.require(lambda: unchanged("`schedule`", schedule, case.schedule))
                _requirements.require(case, steps)
        _refusals(trial)
    return (
        "any schedule in its order, with the gradients and the loss of the whole batch; nothing is "
        f"held longer than it says, on 1 to {check.world_size} ranks; with tokens, and with frozen "
        "stages"
    )


def _cases(trial: Trial) -> dict[str, tuple[Callable[[], Case], int]]:
    """Return functions that make cases, by name, each with the number of steps."""
    p, draw = trial.size, trial.draw
    gpipe, short = _schedules.forward_first(p, 1, 4), _schedules.forward_first(p, 1, 2)
    first, second = ([0], [1]) if p > 1 else ([], [])
    return {
        "GPipe's order": (partial(Case, trial, gpipe, 8), 1),
        # Micro-batches are large, so that holding one takes more bytes than variables may hold.
        "few in flight": (partial(Case, trial, _schedules.few_in_flight(p, 9), 90), 2),
        "any order": (partial(Case, trial, _schedules.any_order(draw, p, 1, 5), 5), 2),
        "any order, two stages on each rank": (
            partial(Case, trial, _schedules.any_order(draw, p, 2, 3), 7),
            2,
        ),
        "one micro-batch": (partial(Case, trial, _schedules.forward_first(p, 3, 1), 2), 2),
        "tokens, evaluation mode": (partial(Case, trial, short, 5, tokens=True, training=False), 1),
        "the first stage frozen": (partial(Case, trial, short, 3, frozen=first), 1),
        "the second stage frozen": (partial(Case, trial, short, 3, frozen=second), 1),
    }


def _make_step(trial: Trial, schedule: Schedule, share: Share) -> _steps.Step:
    return trial.check.function(share, schedule, mean_square, trial.group).step


def _refusals(trial: Trial) -> None:
    p = trial.size
    good = _schedules.forward_first(p, 1, 3)
    case = Case(trial, good, 6)
    deadlock, incomplete = [list(own) for own in good], [list(own) for own in good]
    deadlock[-1].remove(backward(p - 1, 0))
    deadlock[-1].insert(0, backward(p - 1, 0))
    incomplete[0].remove(forward(0, 1))
    schedules = {
        "a schedule with a deadlock": deadlock,
        "a schedule without F1 of rank 0": incomplete,
        f"a schedule for {p + 1} ranks": _schedules.forward_first(p + 1, 1, 3),
        f"a schedule for {2 * p} stages, although the model has {p}": _schedules.forward_first(
            p, 2, 3
        ),
    }
    if p > 1:
        # As many stages as there are, all on one rank.
        schedules[f"a schedule for 1 rank with {p} stages"] = _schedules.forward_first(1, p, 3)

    def step() -> None:
        few = torch.zeros(2, case.widths[0]).double(), torch.zeros(2, case.widths[-1]).double()
        _make_step(trial, good, case.share())(*few)

    attempts: dict[str, Callable] = {
        name: lambda one=one: _make_step(trial, one, case.share())
        for name, one in schedules.items()
    }
    attempts["3 micro-batches of 2 samples"] = step
    for name, attempt in trial.cases(attempts):
        require_refusal(
            trial,
            attempt,
            what=name,
            seconds=_steps.SECONDS,
            explain=lambda endings: idle_ranks_left(endings, p * [0], MISTAKES.refused_by_some()),
        )
