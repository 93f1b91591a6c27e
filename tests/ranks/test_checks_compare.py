"""How checks compare results with expected values, and arguments with their earlier values."""

import math

import numpy as np
import pytest
import torch

from parlab.checks.base.compare import equal, same
from parlab.checks.base.unchanged import unchanged

RIGHT = np.array([[1.0, -2.0], [0.0, 3.0]])


@pytest.mark.parametrize("tolerance", [0.0, 1e-6])
def test_nan_is_never_right(tolerance: float) -> None:
    nan = np.array([1.0, math.nan])
    found = equal(nan, nan.copy(), "x", tolerance)
    assert found is not None and found.mistake == "not_a_number"
    assert not same(nan, nan, tolerance)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_type_shape_and_dtype_count_before_numbers(kind) -> None:
    right = kind([1.0, 2.0])
    assert equal(kind([1.0, 2.0]), right) is None
    wrong = {
        "returns_none": None,
        "wrong_type": [1.0, 2.0],
        "wrong_shape": kind([[1.0, 2.0]]),
        "wrong_dtype": kind([1, 2]),
    }
    for mistake, got in wrong.items():
        found = equal(got, right)
        assert found is not None and found.mistake == mistake


@pytest.mark.parametrize("changed", [0, 1])
def test_a_list_is_unchanged_only_if_all_its_parts_are(changed: int) -> None:
    before = [torch.zeros(2), np.zeros(3)]
    now = [torch.zeros(2), np.zeros(3)]
    assert unchanged("buckets", now, before) is None
    now[changed] += 1
    found = unchanged("buckets", now, before)
    assert found is not None and found.mistake == "argument_changed"


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
