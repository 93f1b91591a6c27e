"""Corrections by hand: points that an instructor enters in corrections.csv.

They are applied when reports are written, and are not stored in result.json. Therefore, grading
again keeps them, and deleting a line undoes its correction.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from parlab_staff.gradebook.entries import BY_HAND, CORRECTED
from parlab_staff.gradebook.reports.spreadsheet import cell
from parlab_staff.gradebook.table import Row, read_table
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult, by_points
from parlab_staff.grading.student_names import plain_name

COLUMNS = ("student", "exercise", "points", "comment")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)")


@dataclass(frozen=True)
class Correction:
    """One line of corrections.csv.

    Attributes:
        student: as in grades.csv.
        exercise: its key; "" if the points are added to the whole submission.
        points: the exercise's new points, or points to add (if negative, to take off).
        comment: for the student.
        row: its row in the file.
    """

    student: str
    exercise: str
    points: float
    comment: str
    row: Row

    def matches(self, student: str) -> bool:
        # A name copied from grades.csv may start with a quote, which prevents formulas.
        return plain_name(self.student) in (plain_name(student), plain_name(cell(student)))


def create_corrections(folder: Path) -> Path:
    """Return the path of corrections.csv. If there is none, create it with only its header."""
    path = folder / "corrections.csv"
    try:
        # "x" keeps an existing file. With a byte order mark, Excel reads names correctly.
        with path.open("x", encoding="utf-8-sig", newline="") as file:
            file.write(",".join(COLUMNS) + "\r\n")
    except FileExistsError:
        pass
    return path


def read_corrections(path: Path) -> list[Correction]:
    """Return the corrections in a file. Raises ValueError with file and line, and OSError."""
    lines: dict[tuple[str, str], int] = {}
    corrections = []
    for row in read_table(path, required=COLUMNS[:3], optional=COLUMNS[3:]).rows:
        correction = _correction(row)
        target = (plain_name(correction.student), correction.exercise)
        first = lines.setdefault(target, row.line)
        if first != row.line:
            raise row.error(f"line {first} already corrects this; leave one of them")
        corrections.append(correction)
    return corrections


def _correction(row: Row) -> Correction:
    if not row["student"]:
        raise row.error("the student is missing")
    if not _NUMBER.fullmatch(row["points"]):
        raise row.error(f"points {row['points']!r} are not a number")
    points = float(row["points"].replace(",", "."))
    if row["exercise"] and points < 0:
        raise row.error(f"{points:g} points: an exercise earns 0 or more")
    comment = " ".join(row["comment"].split())
    return Correction(row["student"], row["exercise"], points, comment, row)


def apply_corrections(
    results: list[SubmissionResult],
    corrections: list[Correction],
    other_students: Iterable[str] = (),
) -> list[SubmissionResult]:
    """Return new results, in the same order, with all corrections. `results` do not change.

    `other_students` have no result yet, so their corrections are ignored. Raises ValueError, with
    file and line, for an unknown student or exercise, or impossible points.
    """
    known = [result.student for result in results] + list(other_students)
    for correction in corrections:
        if not any(correction.matches(student) for student in known):
            raise correction.row.error(f"no submission of a student {correction.student!r}")
    return [_corrected(r, [c for c in corrections if c.matches(r.student)]) for r in results]


def _corrected(result: SubmissionResult, corrections: list[Correction]) -> SubmissionResult:
    for correction in corrections:
        change = _with_exercise if correction.exercise else _with_added
        result = change(result, correction)
    return result


def _with_exercise(result: SubmissionResult, correction: Correction) -> SubmissionResult:
    exercises = list(result.exercises)
    keys = [e.key for e in exercises if e.key != BY_HAND]
    if correction.exercise not in keys:
        raise correction.row.error(
            f"no exercise {correction.exercise!r} in {result.lab}: it has {', '.join(keys)}"
        )
    index = keys.index(correction.exercise)
    exercises[index] = _exercise(exercises[index], correction)
    status = by_points([e for e in exercises if e.key != BY_HAND])
    return replace(result, exercises=exercises, status=status)


def _exercise(exercise: ExerciseResult, correction: Correction) -> ExerciseResult:
    points = correction.points
    if points > exercise.of:
        raise correction.row.error(f"{points:g} points: {exercise.key} has {exercise.of:g} at most")
    note = _note(f"{points:g} of {exercise.of:g}", correction)
    changed = replace(
        exercise, points=points, parts="", message=f"{note}\n\n{exercise.message}".strip()
    )
    return replace(changed, status=_status(points, exercise.of))


def _status(points: float, of: float) -> GradeStatus:
    if points == of:
        return GradeStatus.PASSED
    return GradeStatus.PARTIAL if points else GradeStatus.FAILED


def _with_added(result: SubmissionResult, correction: Correction) -> SubmissionResult:
    points = correction.points
    if abs(points) > result.of:
        raise correction.row.error(f"{points:+g} points: {result.lab} has {result.of:g} in all")
    what = "added" if points >= 0 else "taken off"
    note = _note(f"{abs(points):g} point{'s' * (abs(points) != 1)} {what}", correction)
    added = ExerciseResult(BY_HAND, GradeStatus.PASSED, points, 0, note)
    return replace(result, exercises=[*result.exercises, added])


def _note(what: str, correction: Correction) -> str:
    return CORRECTED + what + (f"; {correction.comment}" if correction.comment else "")
