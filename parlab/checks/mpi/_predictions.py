"""Compares predicted numbers with the book's formulas, for many numbers of ranks."""

from collections.abc import Callable, Iterable

from parlab.checks.base.check import Check
from parlab.checks.base.predictions import Wrong, require_numbers

Numbers = dict[str, float]

# On few ranks, many wrong formulas agree, so these come last.
RANKS = (5, 13, 64, 8, 7, 6, 4, 3, 2)


def compare(
    check: Check, right: Callable[[int], Numbers], wrong: Callable[[int], Iterable[Wrong]]
) -> str:
    """Compare predictions with the `right` numbers and the `wrong` numbers of misconceptions."""
    with check.trial() as trial:
        for _, size in trial.cases({f"for {size} ranks": size for size in RANKS}):
            predicted = trial.run(size)
            require_numbers(trial, predicted, right(size), wrong(size), "the right number")
    return f"right for {min(RANKS)} to {max(RANKS)} ranks"
