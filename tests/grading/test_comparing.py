"""Values of hidden checks: how many are right, and how many there are."""

import math
from typing import Any

import pytest

from parlab_staff.grading.compare import share_right

NAN = math.nan


@pytest.mark.parametrize(
    ("expected", "got", "share"),
    [
        ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}, (3, 3)),
        ({"a": 1, "b": [1, 2]}, {"b": [1, 3]}, (1, 3)),
        ({"a": 1}, {"a": 1, "more": 2}, (1, 1)),
        ({"a": [[1, 2], [3]]}, {"a": [[1, 2]]}, (2, 3)),
        ({"a": [1]}, {"a": [1, 1, 1]}, (1, 3)),
        ({"a": [1]}, {"a": 1}, (0, 1)),
        ({"a": 1}, [1], (0, 1)),
        ({"a": 1}, None, (0, 1)),
        ({"a": 1.0}, {"a": 1.000001}, (1, 1)),
        ({"a": 1.0}, {"a": 1.001}, (0, 1)),
        ({"a": 0.0}, {"a": 1e-9}, (1, 1)),
        ({"a": NAN}, {"a": NAN}, (0, 1)),
        ({"a": 1.0}, {"a": NAN}, (0, 1)),
        ({"a": 1}, {"a": True}, (0, 1)),
        ({"a": True}, {"a": 1}, (0, 1)),
        ({"a": True}, {"a": True}, (1, 1)),
        ({"a": None}, {"a": None}, (1, 1)),
        ({"a": None}, {}, (0, 1)),
        ({"a": "0.1234"}, {"a": "0.1235"}, (1, 1)),
        ({"a": "0.1234"}, {"a": "0.1236"}, (0, 1)),
        ({"a": "0.1234"}, {"a": "nan"}, (0, 1)),
        ({"a": "0.1234"}, {"a": 0.1234}, (0, 1)),
        ({"a": "ring"}, {"a": "Ring"}, (0, 1)),
        ({"a": 10**400}, {"a": 1.0}, (0, 1)),
        ({"a": 1.0}, {"a": 10**400}, (0, 1)),
    ],
)
def test_share_right(expected: Any, got: Any, share: tuple[int, int]) -> None:
    assert share_right(expected, got) == share
