"""Reports for instructors and students, written from a gradebook."""

from dataclasses import replace
from pathlib import Path

from parlab.runtime.paths import write_atomically
from parlab_staff.gradebook.entries import Gradebook
from parlab_staff.gradebook.reports.feedback import as_html, as_markdown
from parlab_staff.gradebook.reports.grades import grades
from parlab_staff.gradebook.reports.junit import junit
from parlab_staff.gradebook.reports.summary import summary
from parlab_staff.grading.file_names import file_name


def write_reports(folder: Path, gradebook: Gradebook) -> list[Path]:
    """Write all reports into `folder`, each file completely or not at all. Return their paths.

    They are grades.csv, junit.xml, summary.html, and feedback/STUDENT.html and .md for each
    student. Their bytes do not depend on the order of the gradebook's entries. Raises OSError.
    """
    feedback = folder / "feedback"
    feedback.mkdir(parents=True, exist_ok=True)
    gradebook = _in_order(gradebook)
    keys = list(dict.fromkeys(e.key for entry in gradebook.entries for e in entry.exercises))
    files = [file_name(entry.result.student) for entry in gradebook.entries]
    paths = []
    for entry, file in zip(gradebook.entries, files, strict=True):
        paths += [
            write_atomically(feedback / f"{file}.html", as_html(entry, gradebook)),
            write_atomically(feedback / f"{file}.md", as_markdown(entry, gradebook)),
        ]
    # Last, so that the files that the summary links to exist.
    return [
        *paths,
        write_atomically(folder / "grades.csv", grades(gradebook, keys)),
        write_atomically(folder / "junit.xml", junit(gradebook)),
        write_atomically(folder / "summary.html", summary(gradebook, keys, files)),
    ]


def _in_order(gradebook: Gradebook) -> Gradebook:
    """Sort entries by the student's name, first ignoring case, and then with case."""
    entries = sorted(
        gradebook.entries,
        key=lambda e: (e.result.student.casefold(), e.result.student, e.result.path),
    )
    return replace(gradebook, entries=tuple(entries))
