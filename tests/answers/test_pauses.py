"""Answers that pass by luck if all ranks are equally fast are rejected with every seed.

Checks draw short pauses before messages from their seed (`parlab.checks.base.paused_comm`). With
few seeds by day, and many at night, these answers never pass, and right ones pass with any seed.
"""

from collections import Counter

import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.answers.collected import answers_to, exercises
from parlab_staff.answers.run import REFERENCE, run

RANKS = 4
FOLDER = ROOT / "tests" / "lucky"
# Their messages depend on luck as well, so they are not among the kept answers, which have a key.
LUCKY = [(path.parent.name, str(path)) for path in sorted(FOLDER.glob("*/*.py"))]
LUCKY += [
    ("binomial_broadcast", "from_anybody"),  # takes the message of the next broadcast
    ("ring_shift", "received_into_what_is_sent"),
    ("ring_reduce_scatter", "one_buffer_for_all_sends"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [1, pytest.param(50, marks=pytest.mark.nightly)])
def test_answers_that_depend_on_luck_are_rejected_with_every_seed(seeds: int) -> None:
    verdicts = run(RANKS, LUCKY, seeds=range(seeds), seconds=880)
    passed = Counter((one.exercise, one.answer) for one in verdicts if one.passed)
    assert passed == {}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_right_answers_pass_with_another_seed() -> None:
    """`tests/answers/test_answers.py` runs them with one seed, and this test with another one."""
    keys = [key for _, key in exercises()]
    right = [(key, answer.name) for key in keys for answer in answers_to(key) if not answer.wrong]
    wanted = [*((key, REFERENCE) for key in keys), *right]
    verdicts = run(RANKS, wanted, seeds=[2], seconds=3500)
    refused = {f"{one.exercise}/{one.answer}": one.text for one in verdicts if not one.passed}
    assert refused == {}


def test_a_failure_prints_how_to_repeat_it() -> None:
    wanted = [("ring_shift", "sent_twice")] * 2
    first, second = run(2, wanted, seeds=[123])
    assert first.text == second.text and not first.passed
    assert first.repeat == "check.ring_shift(sent_twice, seed=123)"
