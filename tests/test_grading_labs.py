"""Every lab, as the grader meets it: what does nothing earns nothing."""

from pathlib import Path

import pytest

from parlab.files import ROOT, numbered
from parlab.grading import doing_nothing
from parlab.grading.comparing import right_at
from parlab.grading.lab import find_lab
from parlab.grading.running import Limits, run

LABS = [pytest.param(path, id=path.stem) for path in numbered(ROOT / "solutions", ".ipynb")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", LABS)
def test_an_answer_that_does_nothing_earns_nothing(path: Path) -> None:
    """Each hidden check has values that tell an answer from `return None` and an identity."""
    lab = find_lab(path.stem)
    ran = run(doing_nothing.notebook(lab), Limits(cell_seconds=120, seconds=550), "bwrap")
    assert not ran.broken and not ran.ended, ran
    found = doing_nothing.worthless(lab, ran)
    for exercise in lab.exercises:
        for number in range(len(doing_nothing.answers(lab.stub_of(exercise)))):
            assert ran.cells[f"nothing-{number}-{exercise.cell}"].outcome == "ok"
            for check in exercise.hidden:
                assert ran.cells[f"nothing-{number}-{check}"].outcome in ("ok", "error"), check
        assert not doing_nothing.nothing_left(exercise, found), exercise.key
        for check, (_, expected) in exercise.hidden.items():
            assert right_at(expected, ran.cells[check].json[0]), "the reference ran as well"
            assert all(right_at(expected, ran.cells[check].json[0]).values()), check
