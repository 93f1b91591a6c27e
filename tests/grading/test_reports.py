"""The reports have the points and the messages of every student."""

import stat
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from parlab.runtime import paths
from parlab.runtime.paths import write_atomically
from parlab_staff.gradebook.entries import BY_HAND, Gradebook
from parlab_staff.gradebook.reports import write_reports
from parlab_staff.gradebook.reports.text import shown
from parlab_staff.gradebook.reports.words import OF_EXERCISE, OF_SUBMISSION, SIGNS, number
from parlab_staff.grading.results import ExerciseResult, GradeStatus
from tests.grading.gradebooks import HOSTILE, Page, entry, exercise, hostile_entry, table, written


def test_each_file_is_written_and_returned(tmp_path: Path) -> None:
    paths = write_reports(tmp_path, Gradebook("01_mpi", (entry("bo"), entry("anna"))))
    names = [path.relative_to(tmp_path).as_posix() for path in paths]
    assert names == [
        *("feedback/anna.html", "feedback/anna.md", "feedback/bo.html", "feedback/bo.md"),
        *("grades.csv", "junit.xml", "summary.html"),
    ]
    assert sorted(paths) == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_the_same_gradebook_gives_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    entries = [hostile_entry(text) for text in HOSTILE]
    first = written(tmp_path / "first", *entries)
    second = written(tmp_path / "second", *reversed(entries))
    names = {path.relative_to(first) for path in first.rglob("*") if path.is_file()}
    assert len(names) == 2 * len(entries) + 3
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_a_class_without_students_has_reports(tmp_path: Path) -> None:
    written(tmp_path)
    assert table(tmp_path) == []
    assert "handed in 0" in Page(tmp_path / "summary.html").text


# Files


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    path = write_atomically(tmp_path / "a.txt", "before")
    monkeypatch.setattr(paths.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(path, "after")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "before")]


def test_a_file_is_as_readable_as_others_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").touch()
    path = write_atomically(tmp_path / "a.txt", "lone \udc80")
    mode = (tmp_path / "plain.txt").stat().st_mode
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(mode)
    assert path.read_text() == r"lone \udc80"


# grades.csv


def test_the_table_has_rows_for_students_and_columns_for_exercises(
    tmp_path: Path,
) -> None:
    late = entry("bo", name="Bo Chen", late=True, late_text="1 day late", factor=0.9)
    stranger = entry("carl", on_roster=False, message="an old release\nmore")
    assert table(written(tmp_path, stranger, late)) == [
        {
            **{"student": "bo", "name": "Bo Chen", "ring": "3", "tree": "1", "total": "3.6"},
            **{"of": "6", "late": "1 day late", "status": "partial", "note": ""},
        },
        {
            **{"student": "carl", "name": "", "ring": "3", "tree": "1", "total": "4", "of": "6"},
            **{"late": "", "status": "partial", "note": "not on the roster; an old release"},
        },
    ]
    assert (tmp_path / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf")


def test_an_ungraded_exercise_is_blank_and_never_zero(tmp_path: Path) -> None:
    slip = exercise("ring", 0, status=GradeStatus.GRADER_ERROR)
    whole = entry("carl", status=GradeStatus.GRADER_ERROR)
    rows = table(
        written(tmp_path, entry("anna", exercise("ring", None), exercise("tree", 3)),
                entry("bo", slip, exercise("tree", 3)), whole)
    )  # fmt: skip
    assert [(row["ring"], row["tree"], row["total"]) for row in rows] == [
        ("", "3", ""),
        ("", "3", ""),
        ("3", "1", ""),
    ]
    assert rows[0]["note"] == "not graded: ring"
    page = Page(tmp_path / "feedback" / "anna.html").text
    assert "no score of 3" in page and "No total yet of 6 points" in page
    assert "not your fault and not a zero" in page
    assert "no score of 3" in (tmp_path / "feedback" / "anna.md").read_text()


def test_points_added_by_hand_have_a_column_if_there_are_any(tmp_path: Path) -> None:
    added = ExerciseResult(
        BY_HAND, GradeStatus.PASSED, 1.5, 0, "corrected by hand: 1.5 points added"
    )
    rows = table(written(tmp_path, entry("anna", exercise("ring", 1), added), entry("bo")))
    assert (rows[0][BY_HAND], rows[0]["total"], rows[1][BY_HAND]) == ("1.5", "2.5", "")
    assert "By hand +1.5" in Page(tmp_path / "feedback" / "anna.html").text
    assert "By hand" in (tmp_path / "feedback" / "anna.md").read_text()


def test_lateness_takes_nothing_off_points_added_by_hand(tmp_path: Path) -> None:
    added = ExerciseResult(BY_HAND, GradeStatus.PASSED, 1, 0, "corrected by hand: 1 point added")
    rows = table(written(tmp_path, entry("anna", exercise("ring", 2), added, factor=0.5)))
    assert rows[0]["total"] == "2"


# junit.xml


def test_junit_has_suites_for_students_and_cases_for_exercises(tmp_path: Path) -> None:
    kinds = {
        GradeStatus.PASSED: None,
        **dict.fromkeys((GradeStatus.PARTIAL, GradeStatus.FAILED), "failure"),
        **dict.fromkeys((GradeStatus.MISSING, GradeStatus.NOT_REACHED), "skipped"),
        **dict.fromkeys((GradeStatus.ERROR, GradeStatus.TIMEOUT, GradeStatus.DIED), "error"),
        GradeStatus.GRADER_ERROR: "error",
    }
    all_of_them = [exercise(s.value, 0, "first\nsecond", status=s) for s in kinds]
    written(tmp_path, entry("anna", *all_of_them, seconds=12.5), entry("bo"))
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    anna, bo = root.findall("testsuite")
    assert (anna.get("name"), anna.get("time"), bo.get("name")) == ("anna", "12.5", "bo")
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("11", "3", "4")
    for case, (status, kind) in zip(anna.findall("testcase"), kinds.items(), strict=True):
        assert (case.get("name"), case.get("classname")) == (status.value, "01_mpi")
        assert [child.tag for child in case] == ([kind] if kind else [])
        if kind:
            score = "no score" if status is GradeStatus.GRADER_ERROR else "0"
            assert case[0].get("message") == f"{score} of 3: first"
            assert (case[0].get("type"), case[0].text) == (status.value, "first\nsecond")


# Pages


def test_feedback_says_how_each_exercise_went_and_never_the_notes(tmp_path: Path) -> None:
    seen = exercise("ring", 1, "all ranks: look\n  rank 0  at line 3", notes=["SECRET of ring"])
    timeout = exercise("tree", 0, "stopped", status=GradeStatus.TIMEOUT)
    fields = {"late": True, "late_text": "2 hours late: 50 % of it", "message": "old release"}
    written(tmp_path, entry("anna", seen, timeout, notes=["SECRET"], factor=0.5, **fields))
    page = (tmp_path / "feedback" / "anna.html").read_text()
    assert "<pre>all ranks: look\n  rank 0  at line 3</pre>" in page
    text = Page(tmp_path / "feedback" / "anna.html").text
    for words in ["0.5 of 6 points", "1 of 3", "took too long", "2 hours late", "old release"]:
        assert words in text
    markdown = (tmp_path / "feedback" / "anna.md").read_text()
    assert "```text\nall ranks: look\n  rank 0  at line 3\n```" in markdown
    assert "0.5 of 6" in markdown and "2 hours late" in markdown and "old release" in markdown
    assert "SECRET" not in page + markdown
    assert "SECRET of ring" in Page(tmp_path / "summary.html").text


def test_feedback_says_how_the_points_came_about(tmp_path: Path) -> None:
    """It shows the parts of an exercise, and the total before the deduction for lateness."""
    parts = "check 0 of 2, further check 1 of 1"
    late = {"late": True, "late_text": "1 day late: 50 % are taken off", "factor": 0.5}
    written(tmp_path, entry("anna", exercise("ring", 1, parts=parts), exercise("tree", 3), **late))
    page = Page(tmp_path / "feedback" / "anna.html").text
    markdown = (tmp_path / "feedback" / "anna.md").read_text()
    assert parts in page and "2 of 6" in page
    for text in (page, markdown):
        assert "4 of 6 points were earned before that" in text
    assert "further check 1 of 1" in markdown


def test_a_long_message_is_cut_and_says_by_how_much(tmp_path: Path) -> None:
    written(tmp_path, entry("anna", exercise("ring", 0, "x" * 8_000 + "y" * 12_345)))
    for path in (tmp_path / "feedback").iterdir():
        text = path.read_text()
        assert "x" * 8_000 in text and "xy" not in text, path
        assert "12,345 more characters are not shown" in text
    assert shown("x" * 8_000) == "x" * 8_000


def test_every_status_has_words_and_a_unique_sign() -> None:
    assert set(OF_EXERCISE) == set(OF_SUBMISSION) == set(SIGNS) == set(GradeStatus)
    assert len(set(SIGNS.values())) == len(GradeStatus)


@pytest.mark.parametrize(
    ("points", "text"), [(None, ""), (0, "0"), (10, "10"), (2.5, "2.5"), (1 / 3, "0.33")]
)
def test_points_are_written_shortly(points: float | None, text: str) -> None:
    assert number(points) == text
