"""Stubs pass no check, and answers that do nothing get no points. This runs no whole labs.

`tests/notebook/test_labs.py` and `tests/grading/test_labs.py` run whole labs.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parlab.runtime.paths import ROOT, numbered
from parlab_staff.grading import no_op_answers
from parlab_staff.grading.compare import right_at
from parlab_staff.grading.graded_lab import GradedLab, find_lab
from parlab_staff.mutants.outcome import Outcome, Trials
from parlab_staff.mutants.target import Target, targets
from tests.support.nightly import cases
from tests.support.timing import record_cases

SECONDS = 60.0  # for a check, even on a busy machine
HANGS_SECONDS = 2.0  # for an answer that may leave its ranks waiting
LABS = [source.stem for source in numbered(ROOT / "solutions", ".py")]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Trials]:
    with Trials() as started:
        yield started


class Tries:
    """Runs the checks of a lab, and records how long each exercise takes."""

    def __init__(self, ranks: Trials, lab: str) -> None:
        self.ranks, self.graded = ranks, find_lab(lab)
        self.targets = [one for one in targets() if one.exercise.lab.name == lab]
        self.seconds: dict[str, float] = {}

    def __call__(self, target: Target, answer: str, code: str, seconds: float = SECONDS) -> Outcome:
        answer = re.sub(r"^%%", "# %%", answer)
        start = time.monotonic()
        outcome = self.ranks.outcome(target, answer, code, seconds=seconds, stuck=seconds)
        taken = time.monotonic() - start
        self.seconds[target.key] = self.seconds.get(target.key, 0) + taken
        return outcome


@pytest.fixture
def tries(lab: str, ranks: Trials, record_property: Callable) -> Iterator[Tries]:
    one = Tries(ranks, lab)
    yield one
    record_cases(record_property, one.seconds)


def of_key(lab: GradedLab, key: str) -> Any:
    return next(one for one in lab.exercises if one.key == key)


@pytest.mark.parametrize("lab", LABS)
def test_no_stub_passes_its_check(lab: str, tries: Tries) -> None:
    assert tries.targets
    for target in tries.targets:
        [cell] = [c for c in tries.graded.handed_out.cells if c.id == f"exercise-{target.key}"]
        outcome = tries(target, cell.source, target.check)
        assert outcome.ending == "rejected", (target.key, outcome)
        assert f"{target.key}: not done yet" in outcome.message, outcome


@pytest.mark.parametrize("lab", cases(LABS, LABS[:1]))
def test_an_answer_that_does_nothing_earns_nothing(lab: str, tries: Tries) -> None:
    """Each hidden check has values that differ from those for `return None` and an identity."""
    for target in tries.targets:
        graded = of_key(tries.graded, target.key)
        right = tries(target, target.reference, target.hidden)
        for (check, (_, expected)), shown in zip(graded.hidden.items(), right.values, strict=True):
            assert all(right_at(expected, shown).values()), f"{check}: the reference is wrong"
        found: dict[str, frozenset] = {}
        for answer in no_op_answers.answers(tries.graded.stub_of(graded)):
            outcome = tries(target, answer, target.hidden, HANGS_SECONDS)
            for (check, (_, expected)), shown in zip(
                graded.hidden.items(), outcome.values or [], strict=False
            ):
                places = {place for place, right in right_at(expected, shown).items() if right}
                found[check] = found.get(check, frozenset()) | places
        assert not no_op_answers.nothing_left(graded, found), target.key
