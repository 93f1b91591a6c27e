"""The roster and the corrections: CSV files that people write."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from parlab_staff.gradebook.corrections import (
    apply_corrections,
    create_corrections,
    read_corrections,
)
from parlab_staff.gradebook.entries import graded_entry
from parlab_staff.gradebook.late import read_due, read_moment, read_policy
from parlab_staff.gradebook.reports.spreadsheet import cell
from parlab_staff.gradebook.roster import read_roster
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult


def written(folder: Path, content: str | bytes, name: str = "file.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def submission(student: str = "anna", points: tuple[float | None, ...] = (1, 0)):
    statuses = {None: GradeStatus.GRADER_ERROR, 0: GradeStatus.FAILED, 3: GradeStatus.PASSED}
    exercises = [
        ExerciseResult(
            key, statuses.get(p, GradeStatus.PARTIAL), p, 3, "" if p == 3 else "look here"
        )
        for key, p in zip(("ring", "tree"), points, strict=True)
    ]
    return SubmissionResult(student, "01_mpi", "a.ipynb", GradeStatus.PARTIAL, exercises)


def corrected(folder: Path, rows: str, *results: SubmissionResult) -> list[SubmissionResult]:
    path = written(folder, "student,exercise,points,comment\n" + rows, "corrections.csv")
    return apply_corrections(list(results or [submission()]), read_corrections(path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_roster_is_read_however_the_spreadsheet_saved_it(tmp_path, encoding, delimiter) -> None:
    text = (
        'Student,name,group,due,submitted\r\nmüller,"Müller","1",2026-11-20T18:00Z,\r\n\r\nbo\r\n'
    )
    path = written(tmp_path, text.replace(",", delimiter).encode(encoding))
    mueller, bo = read_roster(path).entries
    assert (mueller.student, mueller.name) == ("müller", "Müller")
    assert mueller.due == datetime(2026, 11, 20, 18, tzinfo=UTC)
    assert (mueller.submitted, bo.name, bo.due) == (None, "", None)
    assert (mueller.line, bo.line) == (2, 4)
    assert read_roster(path).ignored == ("group",)


@pytest.mark.parametrize("first", ["sep=;", "SEP=;", '"sep=;"', "sep=\t", "sep=|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_excels_line_with_the_separator_is_not_the_header(tmp_path, first, end) -> None:
    rows = ["student;name, given", "anna;Anna, A.", ";nobody"]
    text = end.join([first, *rows]).replace(";", first.strip('"')[-1])
    with pytest.raises(ValueError, match="line 4: the student is missing"):
        read_roster(written(tmp_path, text))
    [anna] = read_roster(written(tmp_path, text.rpartition(end)[0])).entries
    assert (anna.student, anna.line) == ("anna", 3)


def test_a_name_from_a_mac_is_found(tmp_path: Path) -> None:
    roster = read_roster(written(tmp_path, "student\nMüller\n"))
    found = roster.find("Mu\u0308ller")
    assert found is not None and found.student == "Müller"
    assert roster.find("müller") is None


def test_a_name_with_invisible_characters_is_found(tmp_path: Path) -> None:
    roster = read_roster(written(tmp_path, "student\n\u200fmira\u200b\n"))
    assert [entry.student for entry in roster.entries] == ["mira"]
    assert roster.find("mi\u200era") == roster.entries[0]


def test_columns_may_resemble_those_that_are_there(tmp_path: Path) -> None:
    roster = read_roster(written(tmp_path, "student,student_id,name,fname\nanna,7,Anna,A\n"))
    assert roster.ignored == ("student_id", "fname")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"line 1: the column 'student' is missing"),
        ("name\nAnna\n", r"line 1: the column 'student' is missing"),
        ("student,student\na,b\n", r"line 1: the column 'student' appears twice"),
        ("sep=;\nname;group\n", r"line 2: the column 'student' is missing: it has name, group"),
        ("student\nanna\nbo\nanna\n", r"line 4: the student 'anna' is already in line 2"),
        ("student\nmüller\nmu\u0308ller\n", r"line 3: .* already in line 2"),
        ("student,due\nanna,soon\n", r"line 2: 'soon' is not a time"),
        ("student,due,Due\nanna,,\n", r"line 1: the column 'due' appears twice"),
        ("student,submited\na,\n", r"line 1: an unknown column 'submited': did you mean 'submit"),
        ("student,submitted\na,2026-11-20\nb,2026-99-99\n", r"line 3: '2026-99-99' is not a time"),
        ("student,name\n,Anna\n", r"line 2: the student is missing"),
        ("student\nmira\nmi\u200bra\n", r"line 3: .* already in line 2"),
        ("student,name\nanna,Müller, Anna\n", r"line 2: 3 cells where the first line names 2"),
        ('student,name\nbo,"two\nlines"\n,x\n', r"line 4: the student is missing"),
        ('student\nanna\n"bo\n', r"line 3: not CSV"),
        (b"student\nanna\nm\xfcller\n", r"line 3: not UTF-8; save it as .CSV UTF-8."),
    ],
)
def test_an_invalid_roster_is_reported_with_its_line(tmp_path, content, words) -> None:
    path = written(tmp_path, content, "roster.csv")
    with pytest.raises(ValueError, match=rf"roster\.csv, {words}"):
        read_roster(path)


def test_an_extension_and_a_known_time_win_over_the_file(tmp_path: Path) -> None:
    roster = read_roster(
        written(tmp_path, "student,due,submitted\nanna,2026-11-30,\nbo,,2026-11-01T00:00Z\n")
    )
    policy, due = read_policy("10/day"), read_due("2026-11-20T18:00Z")
    result = submission()
    result.submitted = "2026-11-21T18:00:00+00:00"
    assert graded_entry(result, policy, due).total == pytest.approx(0.9)
    assert graded_entry(result, policy, due, roster.find("anna")).total == 1.0
    bo = graded_entry(result, policy, due, roster.find("bo"))
    assert not bo.late
    assert read_moment(bo.result.submitted) == read_moment("2026-11-01T00:00Z")
    assert graded_entry(result, policy, None).late_text == ""


def test_a_student_without_a_submission_is_not_late() -> None:
    result = submission(points=(0, 0))
    result.status, result.submitted = GradeStatus.MISSING, "2026-11-21T18:00:00+00:00"
    entry = graded_entry(result, read_policy("zero"), read_due("2026-11-20"))
    assert (entry.late, entry.late_text, entry.total) == (False, "", 0.0)


def test_corrections_are_made_once_and_never_overwritten(tmp_path: Path) -> None:
    path = create_corrections(tmp_path)
    assert path.read_bytes() == b"\xef\xbb\xbfstudent,exercise,points,comment\r\n"
    assert read_corrections(path) == []
    with path.open("a") as file:
        file.write("anna,ring,2,\n")
    before = path.read_bytes()
    assert create_corrections(tmp_path) == path
    assert path.read_bytes() == before


def test_a_correction_gives_new_points_and_says_so(tmp_path: Path) -> None:
    before = submission()
    (after,) = corrected(tmp_path, 'anna,ring,2,"the idea\n is right"\n', before)
    ring, tree = after.exercises
    assert (ring.points, ring.status) == (2, GradeStatus.PARTIAL)
    assert ring.message == "corrected by hand: 2 of 3; the idea is right\n\nlook here"
    assert tree == before.exercises[1]
    assert before == submission(), "what is stored stays as it was graded"


@pytest.mark.parametrize(
    ("points", "exercise_status", "status"),
    [
        ("3", GradeStatus.PASSED, GradeStatus.PARTIAL),
        ("0", GradeStatus.FAILED, GradeStatus.FAILED),
        ("1,5", GradeStatus.PARTIAL, GradeStatus.PARTIAL),
    ],
)
def test_statuses_follow_the_corrected_points(tmp_path, points, exercise_status, status) -> None:
    (after,) = corrected(tmp_path, f'anna,ring,"{points}",\n')
    assert (after.exercises[0].status, after.status) == (exercise_status, status)


def test_an_ungraded_exercise_can_be_graded_by_hand(tmp_path: Path) -> None:
    ungraded = submission(points=(None, 3))
    ungraded.status = GradeStatus.GRADER_ERROR
    assert graded_entry(ungraded, read_policy("none")).total is None
    (after,) = corrected(tmp_path, "anna,ring,3,\n", ungraded)
    assert (after.status, graded_entry(after, read_policy("none")).total) == (GradeStatus.PASSED, 6)
    (half,) = corrected(tmp_path, "anna,ring,3,\n", submission(points=(None, None)))
    assert (half.status, half.points) == (GradeStatus.GRADER_ERROR, None)


def test_points_for_the_submission_ignore_lateness_and_no_total_is_negative(
    tmp_path,
) -> None:
    policy, due = read_policy("50/day"), read_due("2026-11-20T18:00Z")
    late = submission(points=(3, 1))
    late.submitted = "2026-11-21T00:00:00+00:00"
    (more,) = corrected(tmp_path, "anna,,1.5,drawn well\n", late)
    assert graded_entry(more, policy, due).total == 3.5
    assert (more.of, more.status) == (6, late.status)
    assert more.exercises[-1].message == "corrected by hand: 1.5 points added; drawn well"
    (less,) = corrected(tmp_path, "anna,,-5,\n", late)
    assert graded_entry(less, policy, due).total == 0
    assert less.exercises[-1].message == "corrected by hand: 5 points taken off"


def test_both_kinds_of_correction_work_in_either_order(tmp_path: Path) -> None:
    rows = ["anna,,1,", "anna,ring,3,", "anna,tree,3,"]
    for ordered in (rows, rows[::-1]):
        (after,) = corrected(tmp_path, "\n".join(ordered))
        assert graded_entry(after, read_policy("none")).total == 7
        assert after.status is GradeStatus.PASSED


@pytest.mark.parametrize("points", [".5", "0,5", ",5", "+.50", "0.5"])
def test_points_in_any_decimal_spelling(tmp_path: Path, points: str) -> None:
    (after,) = corrected(tmp_path, f'anna,ring,"{points}",\n')
    assert after.exercises[0].points == 0.5


@pytest.mark.parametrize("student", ["=1+1", "-rf", "two\nlines", "lone \udc80", "a;=b"])
def test_a_name_can_be_copied_from_grades_csv(tmp_path: Path, student: str) -> None:
    text = 'student,exercise,points\n"' + cell(student) + '",ring,3\n'
    corrections = read_corrections(written(tmp_path, text))
    (after,) = apply_corrections([submission(student)], corrections)
    assert after.exercises[0].points == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("nobody,ring,1,", r"no submission of a student 'nobody'"),
        (",ring,1,", r"the student is missing"),
        ("anna,rnig,1,", r"no exercise 'rnig' in 01_mpi: it has ring, tree"),
        ("anna,by hand,1,", r"no exercise 'by hand'"),
        ("anna,ring,,", r"points '' are not a number"),
        ("anna,ring,all,", r"points 'all' are not a number"),
        ("anna,ring,nan,", r"points 'nan' are not a number"),
        ("anna,ring,-1,", r"-1 points: an exercise earns 0 or more"),
        ("anna,ring,3.5,", r"3.5 points: ring has 3 at most"),
        ("anna,,7,", r"\+7 points: 01_mpi has 6 in all"),
        ("anna,tree,2,", r"line 2 already corrects this"),
    ],
)
def test_an_invalid_correction_is_reported_with_its_line(tmp_path, row, words) -> None:
    with pytest.raises(ValueError, match=rf"corrections\.csv, line 3: {words}"):
        corrected(tmp_path, f"anna,tree,1,\n{row}\n")


def test_a_correction_of_a_student_without_a_result_is_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, "student,exercise,points\nbo,ring,1\n")
    results = apply_corrections([submission()], read_corrections(path), other_students=["bo"])
    assert results == [submission()]
