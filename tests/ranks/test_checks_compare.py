"""How checks compare results with expected values, and arguments with their earlier values."""

import math

import numpy as np
import pytest
import torch

from parlab.checks.base.compare import equal, same
from parlab.checks.base.unchanged import unchanged


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
