"""The checks of all labs accept the references on any number of ranks.

On four ranks, and what else they accept and reject: `tests/answers`. A check on seven ranks tries
six, five, … and one of them as well.
"""

import pytest

from parlab.answers.collected import exercises
from parlab.answers.ranks import REFERENCE, run

NEEDS_TWO = "ping_pong"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("world_size", [1, 2, 7])
def test_the_references_pass(world_size: int) -> None:
    # All labs on one set of ranks: to start seven, which import torch, takes longer than a check.
    said = run(world_size, [(key, REFERENCE) for _, key in exercises()], seconds=880)
    refused = {verdict.exercise: verdict.text for verdict in said if not verdict.passed}
    if world_size == 1:
        assert "takes two" in refused.pop(NEEDS_TWO)
    assert refused == {}
