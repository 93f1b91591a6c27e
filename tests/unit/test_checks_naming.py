"""A check names a mistake only if no other known mistake gives the same result."""

import numpy as np
import pytest

from parlab.checks.base.compare import explained
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import misconception

MISTAKES = Mistakes(doubled="it is doubled", squared="it is squared")
RIGHT = np.array([3.0, 2.0])


@pytest.mark.parametrize(
    ("right", "got", "mistake"),
    [(3.0, 6.0, "doubled"), (3.0, 9.0, "squared"), (2.0, 4.0, None), (3.0, 5.0, None)],
)
def test_a_result_is_named_after_the_only_mistake_that_computes_it(
    right: float, got: float, mistake: str | None
) -> None:
    numbers = {"doubled": 2 * right, "squared": right**2}  # both are 4 if `right` is 2
    variants = {key: np.array([number]) for key, number in numbers.items()}
    found = explained(np.array([got]), np.array([right]), variants, MISTAKES)
    assert found is not None and found.mistake == mistake


def test_pairs_with_one_key_are_one_mistake() -> None:
    pairs = [("doubled", 2 * RIGHT), ("doubled", RIGHT + RIGHT)]
    found = explained(2 * RIGHT, RIGHT, pairs, MISTAKES)
    assert found is not None and found.mistake == "doubled"


def test_a_prediction_is_named_after_the_only_misconception_that_explains_it() -> None:
    measured, predicted = {"sent": 3.0, "kept": 2.0}, {"sent": 6.0, "kept": 4.0}
    wrong = [("kept", 4.0, MISTAKES.doubled()), ("kept", 4.0, MISTAKES.squared())]
    assert misconception(predicted, measured, wrong) is None
    found = misconception(predicted, measured, [("sent", 6.0, MISTAKES.doubled()), *wrong])
    assert found is not None and found.mistake == "doubled"
