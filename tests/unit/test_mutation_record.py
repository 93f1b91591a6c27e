"""The record of the mutants: scores of exercises that exist, and reasons of survivors.

`make mutants` tries the mutants, which takes minutes, and reports survivors without a reason.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from parlab_staff.course.references import labs
from parlab_staff.mutants import record, table
from parlab_staff.mutants.record import Reason, Score, Survivor

KEYS = [key for lab in labs() for key in lab.keys]
SURVIVOR = Survivor("constant", ["- a", "+ b"], 1, "check")


def test_every_score_is_of_an_exercise_and_adds_up() -> None:
    scores = record.read()
    assert set(scores) == set(KEYS)
    for key, score in scores.items():
        assert score.mutants == score.rejected + score.survivors, key
        assert score.named <= score.rejected and score.rejected_hidden <= score.mutants, key
        assert score.mutants >= 5, key


def test_every_reason_is_of_an_exercise_and_explains() -> None:
    for reason in record.reasons():
        assert reason.exercise in KEYS
        assert len(reason.reason) > 20, reason
        assert bool(reason.change) != bool(reason.accepted_by), reason


# Parts of the record


def score(**changed) -> Score:
    return replace(Score(10, 9, 5, 8, 1, "2026-01-01"), **changed)


def test_writing_keeps_other_exercises(tmp_path: Path) -> None:
    first, second, *_ = KEYS
    record.write({first: score(), second: score()}, tmp_path)
    record.write({second: score(named=1)}, tmp_path)
    assert record.read(tmp_path) == {first: score(), second: score(named=1)}


@pytest.mark.parametrize(
    ("reason", "covered"),
    [
        (Reason("f", "…", change="- a\n+ b\n"), True),
        (Reason("f", "…", change="- a\n+ b", occurrence=2), False),
        (Reason("g", "…", change="- a\n+ b"), False),
        (Reason("f", "…", change="- a\n+ c"), False),
        (Reason("f", "…", accepted_by="check"), True),
        (Reason("f", "…", accepted_by="hidden"), False),
    ],
)
def test_which_survivors_a_reason_covers(reason: Reason, covered: bool) -> None:
    assert reason.covers("f", SURVIVOR) == covered
    assert list(record.unexplained({"f": [SURVIVOR]}, [reason])) == (
        [] if covered else [("f", SURVIVOR)]
    )


def test_the_table_has_a_row_for_every_exercise(tmp_path: Path) -> None:
    first, *_ = KEYS
    record.write({first: score()}, tmp_path)
    rows = table.table(tmp_path).splitlines()[2:]
    assert len(rows) == len(KEYS)
    assert rows[0] == f"| `{first}` | 10 | 90% | 55% | 80% | 1 |"
    assert all("not measured" in row for row in rows[1:])
