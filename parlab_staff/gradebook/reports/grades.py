"""grades.csv: one row for each student."""

import csv
import io

from parlab_staff.gradebook.entries import BY_HAND, Entry, Gradebook, points_of
from parlab_staff.gradebook.reports.spreadsheet import cell
from parlab_staff.gradebook.reports.text import first_line
from parlab_staff.gradebook.reports.words import number
from parlab_staff.grading.results import GradeStatus


def grades(gradebook: Gradebook, keys: list[str]) -> str:
    """Return the text of grades.csv, with one column for each exercise in `keys`.

    If an exercise could not be graded, its cell and the total are blank. The text starts with a
    byte order mark, by which Excel recognizes UTF-8.
    """
    keys = keys + [BY_HAND] * any(entry.added for entry in gradebook.entries)
    table = io.StringIO()
    writer = csv.writer(table, quoting=csv.QUOTE_ALL)
    header = ["student", "name", *keys, "total", "of", "late", "status", "note"]
    writer.writerow([cell(text) for text in header])
    writer.writerows(_row(entry, keys) for entry in gradebook.entries)
    return "\ufeff" + table.getvalue()


def _row(entry: Entry, keys: list[str]) -> list[str]:
    result = entry.result
    points = {exercise.key: points_of(exercise) for exercise in result.exercises}
    return [
        cell(result.student),
        cell(entry.name),
        *(number(points.get(key)) for key in keys),
        number(entry.total),
        number(result.of),
        cell(entry.late_text),
        cell(result.status),
        cell(_note(entry)),
    ]


def _note(entry: Entry) -> str:
    """Return a note for the instructor; the summary page has the details."""
    ungraded = [e.key for e in entry.exercises if e.status is GradeStatus.GRADER_ERROR]
    notes = sum(len(e.notes) for e in entry.result.exercises) + len(entry.result.notes)
    parts = [
        "" if entry.on_roster else "not on the roster",
        first_line(entry.result.message),
        f"not graded: {', '.join(ungraded)}" if ungraded else "",
        f"{notes} to look at by hand" if notes else "",
    ]
    return "; ".join(part for part in parts if part)
