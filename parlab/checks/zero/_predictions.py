"""Compare a prediction for each stage with the right numbers, and with those of each mistake."""

from collections.abc import Iterable, Mapping

from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import require_numbers
from parlab.checks.base.trial import Trial

STAGES = ("plain", "stage_1", "stage_2", "stage_3")
Variant = tuple[str, Mapping[str, float]]  # a mistake, and the numbers that only it predicts


def compare(
    trial: Trial,
    size: int,
    ranks: int,
    right: Mapping[str, float],
    mistakes: Mistakes,
    variants: Iterable[Variant],
) -> None:
    """Call the learner's function for Ψ = `size` and N = `ranks`, and require the right numbers."""
    trial.situation = f"Ψ = {size:,}, N = {ranks}"
    wrong = [
        (name, value, getattr(mistakes, key)(name=name))
        for key, values in variants
        for name, value in values.items()
    ]
    require_numbers(trial, trial.run(size, ranks), right, wrong, "the right number")
