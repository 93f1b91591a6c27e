"""The checks of all labs accept the references on any number of ranks.

Other answers: `test_answers.py`. A check on seven ranks tries six, five, … and one of them as well.
By day, checks that need no ranks are left out: the labs run them, too (`check_of(…, ranks=1)`).
"""

from collections.abc import Callable

import pytest

from parlab_staff.answers.collected import exercises
from parlab_staff.answers.run import REFERENCE, run
from tests.answers.test_answers import on_one_rank
from tests.support.timing import record_cases

NEEDS_TWO = "ping_pong"
BY_DAY = 3


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "world_size", [BY_DAY, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2, 7))]
)
def test_the_references_pass(world_size: int, record_property: Callable) -> None:
    # All labs on one set of ranks: to start seven, which import torch, takes longer than a check.
    keys = [key for _, key in exercises() if world_size != BY_DAY or not on_one_rank(key)]
    verdicts = run(world_size, [(key, REFERENCE) for key in keys], seconds=880)
    record_cases(record_property, {verdict.exercise: verdict.seconds for verdict in verdicts})
    refused = {verdict.exercise: verdict.text for verdict in verdicts if not verdict.passed}
    if world_size == 1:
        assert "takes two" in refused.pop(NEEDS_TWO)
    assert refused == {}
