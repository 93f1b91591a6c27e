"""The checks of all labs accept the references on any number of ranks.

Other answers: `test_answers.py`. A check on seven ranks tries six, five, … and one of them as well.
"""

from collections.abc import Callable

import pytest

from parlab_staff.answers.collected import exercises
from parlab_staff.answers.run import REFERENCE, run
from tests.support.timing import record_cases

NEEDS_TWO = "ping_pong"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "world_size", [3, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2, 7))]
)
def test_the_references_pass(world_size: int, record_property: Callable) -> None:
    # All labs on one set of ranks: to start seven, which import torch, takes longer than a check.
    said = run(world_size, [(key, REFERENCE) for _, key in exercises()], seconds=880)
    record_cases(record_property, {verdict.exercise: verdict.seconds for verdict in said})
    refused = {verdict.exercise: verdict.text for verdict in said if not verdict.passed}
    if world_size == 1:
        assert "takes two" in refused.pop(NEEDS_TWO)
    assert refused == {}
