"""Files and notebooks of every kind are graded. Their cells run in this process."""

from pathlib import Path

import nbformat
import pytest

from parlab_staff.grading.graded_lab import GradedLab
from parlab_staff.grading.match import match
from parlab_staff.grading.rebuild import build
from parlab_staff.grading.submissions import find_submissions
from tests.grading import cases_files, cases_folders, cases_places, cases_structure, cases_values
from tests.grading.cases import Case
from tests.grading.copies import Copy
from tests.grading.plain_lab import InProcess, in_process_lab

CASES = [
    *cases_files.case,
    *cases_folders.case,
    *cases_structure.case,
    *cases_places.case,
    *cases_values.case,
]


@pytest.fixture(scope="module")
def grader() -> InProcess:
    return InProcess(in_process_lab())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_submission(case: Case, grader: InProcess, tmp_path: Path) -> None:
    case.write(tmp_path, grader.lab)
    [submission] = find_submissions([tmp_path], grader.lab.name).submissions
    case.verify(grader.grade(submission))


def test_a_rank_call_in_a_text_cell_is_not_a_call(grader: InProcess) -> None:
    copy = Copy(grader.lab)
    copy.cells.insert(0, nbformat.v4.new_markdown_cell("cluster.start(2)"))
    matched = match(grader.lab, copy.notebook)
    assert (matched.notes, matched.left_out, matched.after) == ([], [], {})


def test_no_reference_is_in_the_process_of_a_students_code(grader: InProcess) -> None:
    """A student's code can read everything that runs in its process."""
    copy = Copy(grader.lab)
    for exercise in grader.lab.exercises:
        copy.answer(exercise.key, f"%%px\ndef {exercise.key}(*args):\n    return 1 / 0\n")
    copy.cells.remove(copy.cell("exercise-mean"))
    grader.run("student", build(grader.lab, match(grader.lab, copy.notebook)))
    ran = "\n".join(cell.source for cell in grader.ran.cells)
    secret = [line for line in reference_lines(grader.lab) if line in ran]
    assert secret == []


def reference_lines(lab: GradedLab) -> set[str]:
    """Return the lines of the reference's answers that are not in the handout."""
    given = "\n".join(cell.source for cell in lab.handed_out.cells)
    cells = {exercise.cell for exercise in lab.exercises}
    lines = {line for c in lab.cells if c.id in cells for line in c.source.split("\n")}
    return {line for line in lines if line.strip() and line not in given}
