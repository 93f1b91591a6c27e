"""Compare a prediction for each stage with the right numbers, and with those of each mistake."""

from collections.abc import Iterable, Mapping

from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.predictions import first_wrong, form, is_number
from parlab.checks.base.trial import Trial

STAGES = ("plain", "stage_1", "stage_2", "stage_3")
Variant = tuple[str, Mapping[str, float]]  # a mistake, and all numbers that it changes


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
    predicted = trial.run(size, ranks)
    trial.require(
        lambda: form(predicted, right),
        lambda: only_mistake(predicted, right, mistakes, variants),
        lambda: first_wrong(predicted, right, "the right number"),
    )


def only_mistake(
    predicted: Mapping[str, float],
    right: Mapping[str, float],
    mistakes: Mistakes,
    variants: Iterable[Variant],
) -> Finding | None:
    """Name the mistake that explains all wrong numbers; None if several do."""
    wrong = [name for name in right if not is_number(predicted[name], right[name])]
    explained: dict[str, set[str]] = {}  # the names that each mistake explains
    for key, values in variants:
        if all(is_number(predicted[name], value) for name, value in values.items()):
            explained.setdefault(key, set()).update(values)
    keys = [key for key, names in explained.items() if names >= set(wrong)]
    return getattr(mistakes, keys[0])(name=wrong[0]) if wrong and len(keys) == 1 else None
