"""The record of what mutants became of: whole, of exercises that exist, every survivor explained.

Trying them takes minutes, `make mutants` does it. Whether the record is up to date is for the
book's table to say.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from parlab.files import ROOT
from parlab.mutation import record, table
from parlab.mutation.lab import exercises
from parlab.mutation.record import Reason, Score, Survivor

KEYS = [exercise.key for exercise in exercises()]
SCORES = record.read()
SURVIVOR = Survivor("constant", ["- a", "+ b"], 1, "check")


def test_every_score_is_of_an_exercise_and_adds_up() -> None:
    assert set(SCORES) <= set(KEYS)
    for key, score in SCORES.items():
        accepted = [survivor.accepted_by for survivor in score.survivors]
        assert set(accepted) <= {"both", "check", "hidden"}, key
        by_check = sum(one in ("both", "check") for one in accepted)
        by_hidden = sum(one in ("both", "hidden") for one in accepted)
        assert score.mutants == score.rejected + by_check == score.rejected_hidden + by_hidden, key
        assert score.named <= score.rejected and score.mutants >= 5, key


def test_every_survivor_has_a_reason() -> None:
    found = [
        f"{key}, accepted by {one.accepted_by}:\n" + "\n".join(one.change)
        for key, one in record.unexplained(SCORES, record.reasons())
    ]
    assert not found, "\n\n".join(found)


def test_every_reason_is_one_of_a_survivor() -> None:
    for reason in record.reasons():
        assert len(reason.reason) > 20
        survivors = SCORES[reason.exercise].survivors
        assert any(reason.covers(reason.exercise, survivor) for survivor in survivors), reason


# What the record is made of


def score(**changed) -> Score:
    whole = Score(10, 9, 5, 8, [SURVIVOR], "", "2026-01-01", {})
    return replace(whole, **changed)


def test_what_is_written_is_read_and_other_exercises_stay(tmp_path: Path) -> None:
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
def test_which_survivors_a_reason_is_for(reason: Reason, covered: bool) -> None:
    assert reason.covers("f", SURVIVOR) == covered
    assert list(record.unexplained({"f": score()}, [reason])) == (
        [] if covered else [("f", SURVIVOR)]
    )


def test_the_table_has_a_row_for_every_exercise_and_says_what_is_out_of_date(
    tmp_path: Path,
) -> None:
    current, old, *_ = exercises()
    scores = {
        current.key: score(sources=record.sources_digest(current)),
        old.key: score(sources="another"),
    }
    record.write(scores, tmp_path)
    *rows, empty, note = table.table(tmp_path).splitlines()[2:]
    assert (empty, note) == ("", r"\* Its sources have changed since it was measured.")
    assert len(rows) == len(KEYS)
    assert rows[0] == f"| `{current.key}` | 10 | 90 % | 55 % | 80 % | 1 |"
    assert rows[1].startswith(rf"| `{old.key}` \* | 10 |")
    assert all("not measured" in row for row in rows[2:])


def test_a_digest_has_what_the_check_imports_and_no_more() -> None:
    """Else a new exercise, or a module that it alone needs, would put all others out of date."""
    checks = ROOT / "parlab" / "checks"
    one, other, *_ = exercises()
    found = set(record.sources(one))
    assert {checks / "mpi" / f"{one.key}.py", checks / "check.py", checks / "trial.py"} <= found
    beside = {checks / "__init__.py", checks / "mpi" / "__init__.py", checks / "uninitialized.py"}
    assert not found & {*beside, checks / "mpi" / f"{other.key}.py"}
    [late] = exercises(["sharded_master_weights"])
    assert checks / "mixed_precision" / "mixed_step.py" in record.sources(late)  # it uses its names


def test_comments_and_other_exercises_do_not_change_a_digest() -> None:
    one, other, *_ = exercises()
    same = replace(one, check=f"# a comment\n\n{one.check}")
    assert record.sources_digest(same) == record.sources_digest(one)
    assert record.sources_digest(replace(one, check="pass")) != record.sources_digest(one)
    assert record.sources_digest(one) != record.sources_digest(other)
