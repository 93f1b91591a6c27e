"""Predictions of what an algorithm sends, beside what is measured here and counted elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any

from parlab.checks.check import Check
from parlab.checks.mistakes import Finding
from parlab.checks.predictions import Wrong, first_wrong, form, misconception
from parlab.checks.trial import Trial

Numbers = dict[str, float]

# On few ranks many formulas agree. What more ranks would send is counted, and not sent.
MORE_RANKS = (5, 6, 7, 8, 13, 64)


def as_measured_and_counted(
    check: Check,
    measure: Callable[[Trial], Numbers],
    counted: Callable[[int], Numbers],
    wrong_numbers: Callable[[int], list[Wrong]],
    beside: Callable[[Numbers, Numbers], Finding | None],
) -> str:
    """Compare the learner's numbers for each number of ranks; returns what was verified.

    `measure` runs the algorithms on a trial's ranks, `counted` says what they send on so many.
    `wrong_numbers` are those of misconceptions; `beside` sees one that no single number shows,
    from the predicted and the right numbers.
    """

    def compare(trial: Trial, right: Numbers, size: int, how: str) -> None:
        predicted: Mapping[str, Any] = trial.run(size)
        trial.require(
            lambda: form(predicted, right),
            lambda: misconception(predicted, right, wrong_numbers(size)),
            lambda: beside(predicted, right),
            lambda: first_wrong(predicted, right, f"what was {how}"),
        )

    for trial in check.trials(smallest=min(2, check.world_size), reordered=False):
        compare(trial, measure(trial), trial.size, "measured")
    with check.trial() as trial:
        for size in MORE_RANKS:
            trial.situation = f"counted for {size} ranks"
            compare(trial, counted(size), size, "counted")
    return (
        f"as measured on all numbers of ranks up to {check.world_size}, and counted for up to "
        f"{MORE_RANKS[-1]}"
    )
