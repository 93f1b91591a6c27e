"""The checks of all labs accept the references on any number of ranks.

Other answers: `test_answers.py`. A check that uses `check.trials` tries six, five, … and one rank
when it runs on seven. By day, such checks are left out, because the labs run them on four ranks.
Checks that need no ranks (`check_of(…, ranks=1)`) are left out, too: the labs run them as well.
"""

import inspect
from collections.abc import Callable

import pytest

from parlab_staff.answers.collected import exercises
from parlab_staff.answers.run import REFERENCE, run
from tests.answers.test_answers import check_of, on_one_rank
from tests.support.timing import record_cases

NEEDS_TWO = "ping_pong"


def by_day(topic: str, key: str) -> bool:
    function = inspect.unwrap(check_of(topic, key))
    return not on_one_rank(key) and "trials" not in function.__code__.co_names


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("world_size", "every"),
    [(3, False), *(pytest.param(n, True, marks=pytest.mark.nightly) for n in (1, 2, 3, 7))],
)
def test_the_references_pass(world_size: int, every: bool, record_property: Callable) -> None:
    # All labs on one set of ranks: to start seven, which import torch, takes longer than a check.
    keys = [key for topic, key in exercises() if every or by_day(topic, key)]
    verdicts = run(world_size, [(key, REFERENCE) for key in keys], seconds=880)
    record_cases(record_property, {verdict.exercise: verdict.seconds for verdict in verdicts})
    refused = {verdict.exercise: verdict.text for verdict in verdicts if not verdict.passed}
    if world_size == 1:
        assert "needs two ranks" in refused.pop(NEEDS_TWO)
    assert refused == {}
