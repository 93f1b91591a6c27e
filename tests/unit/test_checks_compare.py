"""A comparison names the first difference, and the factor by which all values differ."""

import numpy as np
import pytest

from parlab.checks.base.compare import equal

RIGHT = np.array([[1.0, -2.0], [0.0, 3.0]])


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (4 * RIGHT, "Each value is 4 times the expected one"),
        (RIGHT / 3, "Each value is 1/3 of the expected one"),
        (-RIGHT, "Each value has the wrong sign"),
        (4 * RIGHT + 1e-6, "Each value is 4 times the expected one"),
    ],
)
def test_a_common_factor_is_named(got: np.ndarray, sentence: str) -> None:
    finding = equal(got, RIGHT, tolerance=1e-5)
    assert finding is not None and finding.text.endswith(f" differ). {sentence}")


@pytest.mark.parametrize(
    "got",
    [
        1.5 * RIGHT,
        RIGHT + 1,
        np.array([[4.0, -8.0], [0.1, 12.0]]),  # all but one are four times the expected values
        np.array([[4.0, -8.0], [0.0, np.nan]]),
    ],
)
def test_other_differences_have_no_factor(got: np.ndarray) -> None:
    finding = equal(got, RIGHT, tolerance=1e-5)
    assert finding is not None and "Each value" not in finding.text


@pytest.mark.parametrize("right", [np.array(2), np.array([2, 2]), np.array([0, 2])])
def test_a_single_number_has_no_factor(right: np.ndarray) -> None:
    """It may be wrong for any reason, such as a result of 4 for the sum 1 + 1."""
    finding = equal(2 * right, right)
    assert finding is not None and "Each value" not in finding.text
