"""summary.html: the class's results, for the instructor."""

from parlab_staff.gradebook.entries import Entry, Gradebook
from parlab_staff.gradebook.reports.figures import Totals, exercise_rows, seconds, totals
from parlab_staff.gradebook.reports.html import page
from parlab_staff.gradebook.reports.misconceptions import misconceptions
from parlab_staff.gradebook.reports.words import number
from parlab_staff.grading.results import GradeStatus

# Statuses whose submissions did not run. Their messages say why.
_NOT_RUN = (GradeStatus.ERROR, GradeStatus.TIMEOUT, GradeStatus.DIED, GradeStatus.NOT_REACHED)


def summary(gradebook: Gradebook, keys: list[str], files: list[str]) -> str:
    """Return the page; `files` are the names of the entries' feedback files, without ending."""
    entries = gradebook.entries
    numbers = totals(entries)
    return page(
        "summary.html.j2",
        gradebook=gradebook,
        totals=numbers,
        title=_message(numbers),
        rows=exercise_rows(entries, keys),
        seconds=seconds(entries),
        messages=misconceptions(entries),
        files={id(entry): file for entry, file in zip(entries, files, strict=True)},
        ungraded=[e for e in entries if e.total is None],
        missing=[e for e in entries if not e.handed_in],
        late=[e for e in entries if e.late],
        strangers=[e for e in entries if not e.on_roster],
        not_run=[e for e in entries if e.result.status in _NOT_RUN],
        by_eye=[e for e in entries if _needs_eyes(e)],
    )


def _needs_eyes(entry: Entry) -> bool:
    parts = [entry.result, *entry.result.exercises]
    return any(part.notes or part.status is GradeStatus.GRADER_ERROR for part in parts)


def _message(numbers: Totals) -> str:
    """Return the title of the histogram."""
    return f"Half of the class has {number(numbers.median)} of {number(numbers.of)} points or more"
