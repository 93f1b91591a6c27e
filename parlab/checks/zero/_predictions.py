"""Compare a prediction for each stage with the right numbers, and with those of each mistake."""

from collections.abc import Callable, Iterable, Mapping

from parlab.checks.base.check import Check
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import require_numbers

STAGES = ("plain", "stage_1", "stage_2", "stage_3")
Variant = tuple[str, Mapping[str, float]]  # a mistake, and the numbers that only it predicts


def compare(
    check: Check,
    right: Callable[[int, int], Mapping[str, float]],
    mistakes: Mistakes,
    variants: Callable[[int, int], Iterable[Variant]],
) -> None:
    """Call the learner's function for several Ψ and N, and require the right numbers."""
    with check.trial() as trial:
        # In the small model, a padded shard or a step counter is more than one percent.
        for ranks, parts in ((4, 8), (trial.draw.randrange(5, 70), 10**5), (1, 10**5)):
            size = ranks * trial.draw.randrange(parts, 2 * parts) + min(1, ranks - 1)
            trial.situation = f"Ψ = {size:,}, N = {ranks}"
            wrong = [
                (name, value, getattr(mistakes, key)(name=name))
                for key, values in variants(size, ranks)
                for name, value in values.items()
            ]
            predicted = trial.run(size, ranks)
            require_numbers(trial, predicted, right(size, ranks), wrong, "the right number")
