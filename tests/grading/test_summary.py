"""The summary of a class: its numbers, the messages that students got, and what it lists."""

from pathlib import Path

import pytest

from parlab_staff.gradebook.entries import Entry
from parlab_staff.gradebook.reports.figures import exercise_rows, totals
from parlab_staff.gradebook.reports.misconceptions import misconceptions, normalized
from parlab_staff.grading.results import ExerciseResult, GradeStatus
from tests.grading.gradebooks import KEYS, Page, entry, exercise, missing, written


def test_ungraded_exercises_count_in_no_mean() -> None:
    entries = [
        entry("anna", exercise("ring", 3), exercise("tree", 0)),
        entry("bo", exercise("ring", None), exercise("tree", 1.5)),
        missing("carl"),
    ]
    tree, ring = exercise_rows(entries, list(KEYS))
    assert (tree.key, tree.share) == ("tree", 0.25)
    assert (tree.full, tree.partial, tree.nothing, tree.ungraded) == (0, 1, 1, 0)
    assert (ring.key, ring.share) == ("ring", 1.0)
    assert (ring.full, ring.partial, ring.nothing, ring.ungraded) == (1, 0, 0, 1)
    numbers = totals(entries)
    assert (numbers.count, numbers.mean, numbers.median, numbers.of) == (1, 3, 3, 6)
    assert numbers.bins == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_all_points_are_in_the_last_column_even_if_there_are_none() -> None:
    full = entry("anna", exercise("ring", 3), exercise("tree", 3))
    assert totals([full]).bins == [0] * 9 + [1]
    worthless = ExerciseResult("ring", GradeStatus.PASSED, 0, 0)
    (row,) = exercise_rows([entry("bo", worthless)], ["ring"])
    assert (row.full, row.nothing, row.share) == (1, 0, 1.0)


def test_an_exercise_without_graded_submissions_comes_last() -> None:
    entries = [entry("anna", exercise("ring", None), exercise("tree", 3))]
    assert [(row.key, row.share) for row in exercise_rows(entries, list(KEYS))] == [
        ("tree", 1.0),
        ("ring", None),
    ]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("", ""),
        ("ring: all ranks: x holds 3.5 where 4 is right\nmore", "x holds # where # is right"),
        ("rank 2: ring: look", "look"),
        ("ring: ranks 0, 2-5: look", "look"),
        ("all ranks: ring [no_wait]: rank 2 never waits", "rank # never waits"),
        ("ring: it differs on rank 2: look", "it differs on rank #: look"),
        ("took 1,234.5 and 1e-06 s.", "took # and # s."),
        ("ring: KeyError: 'x' with 3 ranks, shape (15,) of int64", "KeyError: 'x'"),
        (
            "ring: does not end with 4 ranks; stopped while waiting",
            "does not end; stopped while waiting",
        ),
        ("ring: is a `return` missing? (with 2 ranks, root 0)", "is a `return` missing?"),
        ("ring: use `comm` (on 1 rank)", "use `comm`"),
        ("ring: start with 2 rounds", "start with # rounds"),
        ("corrected by hand: 2 of 3; fine\n\nring: rank 0: look", "look"),
        ("corrected by hand: 2 of 3; fine", ""),
        ("Interrupted. These ranks had not finished:\nrank 1  line 3: recv()", "Interrupted."),
    ],
)
def test_equal_messages_about_different_ranks_are_counted_together(message: str, text: str) -> None:
    assert normalized(exercise("ring", 1, message)) == text


def test_the_most_frequent_message_comes_first(tmp_path: Path) -> None:
    def with_messages(student: str, ring: str, tree: str) -> Entry:
        return entry(student, exercise("ring", 0, ring), exercise("tree", 0, tree))

    entries = (
        with_messages("anna", "ring: rank 1: once", "tree: index 3"),
        with_messages("bo", "ring: all ranks: index 5", "tree: index 7"),
        entry("carl", exercise("ring", None, "no device"), exercise("tree", 3)),
    )
    first, second = misconceptions(entries)
    assert (first.text, first.exercises) == ("index #", ["tree", "ring"])
    assert [e.result.student for e in first.entries] == ["anna", "bo"]
    assert (second.text, len(second.entries)) == ("once", 1)
    text = Page(written(tmp_path, *entries) / "summary.html").text
    assert "2 index # tree , ring anna , bo" in text
    assert "ring ? could not be graded: no device" in text


def test_the_summary_says_where_the_code_is_and_when_it_came(tmp_path: Path) -> None:
    noted = entry("anna", exercise("ring", 1, notes=["look at the code"]), exercise("tree", 3))
    noted.result.submitted = "2026-11-30T18:00:00+01:00"
    text = Page(written(tmp_path, noted) / "summary.html").text
    assert "a.ipynb , handed in 2026-11-30 18:00:00+01:00" in text


def test_the_summary_has_path_time_and_seconds_of_each_student(tmp_path: Path) -> None:
    anna, bo = entry("anna", seconds=20.5), entry("bo", seconds=30.0, late_text="1 hour late")
    anna.result.path, anna.result.submitted = "class/anna/x.ipynb", "2026-11-30T17:00:00.25+01:00"
    bo.result.path, bo.result.submitted = "class/bo/x.ipynb", "2026-11-30T19:00:00+01:00"
    text = Page(written(tmp_path, anna, bo, missing("carl")) / "summary.html").text
    assert "anna class/anna/x.ipynb 4 of 6 ✓ ◐ partial 2026-11-30 17:00:00+01:00 20.5" in text
    row = "bo class/bo/x.ipynb 4 of 6 ✓ ◐ partial 2026-11-30 19:00:00+01:00 1 hour late 30"
    assert row in text
    all_of_them = "50.5 for the 2 submissions that ran; median 25.25, maximum 30"
    assert all_of_them in text


def test_one_mistake_on_different_ranks_is_one_row(tmp_path: Path) -> None:
    def with_messages(student: str, message: str) -> Entry:
        return entry(student, exercise("ring", 0, message), exercise("tree", 3))

    entries = (
        with_messages("anna", "all ranks: ring [no_wait]: rank 2 never waits for its `Isend`"),
        with_messages("bo", "rank 1: ring [no_wait]: rank 0 never waits for its `Irecv`"),
        with_messages("carl", "all ranks: ring [raises]: KeyError: 1"),
        with_messages("dora", "all ranks: ring [raises]: ValueError: x"),
    )
    assert [len(group.entries) for group in misconceptions(entries)] == [2, 1, 1]


def test_the_summary_counts_the_class_and_says_how_it_was_graded(tmp_path: Path) -> None:
    entries = (
        entry("anna", late=True, late_text="1 hour late"),
        entry("bo", exercise("ring", None), exercise("tree", 3)),
        entry("carl", exercise("ring", 0), status=GradeStatus.ERROR, message="the file is empty"),
        entry("dora", on_roster=False),
        missing("emil"),
    )
    facts = {
        "solution": "s0lut10n",
        "grader": "gr4d3r",
        "command": "parlab grade x",
        "date": "2026",
    }
    ignored = ("class/notes.pdf",)
    page = Page(written(tmp_path, *entries, **facts, ignored=ignored) / "summary.html")
    for words in [
        "the grader does not recognize them as submissions. class/notes.pdf",
        *("handed in 4", "without a submission 1", "could not be graded 1", "late 1", "roster 1"),
        "Half of the class has 4 of 6 points or more",
        "carl could not be read or run: the file is empty",
        "bo no total yet (not a zero)",
        "dora not on the roster",
        "1 without a submission emil",
        *facts.values(),
    ]:
        assert words in page.text, words
