"""Checks that measure time run again, alone, if other submissions were graded at the same time."""

import threading
from math import inf
from pathlib import Path

import pytest
from nbformat import NotebookNode

from parlab.runtime.paths import ROOT, numbered
from parlab_staff.course.rules import TIMED
from parlab_staff.grading.batch import grade_all
from parlab_staff.grading.graded_lab import find_lab
from parlab_staff.grading.results import SubmissionResult
from parlab_staff.grading.run import CellRun, NotebookRun
from parlab_staff.grading.store import Store
from parlab_staff.grading.submissions import Submission
from tests.grading.copies import Copy
from tests.grading.plain_lab import InProcess, in_process_lab


class Disturbed(InProcess):
    """A grader for which the first run of each notebook is too slow in `add`."""

    def __init__(self) -> None:
        lab = in_process_lab()
        [cell] = [c for c in lab.solution.cells if c.id == "exercise-add"]
        cell.metadata.tags.append(TIMED)
        super().__init__(lab)
        self.one_shell, self.active = threading.Lock(), 0
        self.cells: dict[str, list[int]] = {}  # the number of cells in each run, by student
        self.beside: dict[str, int] = {}  # how many others ran at the same time as the last run

    def run(self, student: str, notebook: NotebookNode, seconds: float = inf) -> NotebookRun:
        self.active += 1
        with self.one_shell:
            ran = super().run(student, notebook)
            self.beside[student] = self.active - 1
            self.active -= 1
        runs = self.cells.setdefault(student, [])
        runs.append(len(notebook.cells))
        if len(runs) == 1:
            ran.cells["check-add"] = CellRun("error", "AssertionError", "add: that took long")
        return ran


def handed_in(folder: Path, copies: dict[str, Copy]) -> list[Submission]:
    found = []
    for student, copy in copies.items():
        (folder / f"{student}.ipynb").write_text(copy.text())
        found.append(Submission(student, folder / f"{student}.ipynb"))
    return found


def graded(grader: Disturbed, folder: Path, jobs: int) -> dict[str, SubmissionResult]:
    right, no_mean = Copy(grader.lab), Copy(grader.lab).stub("mean")
    wrong = Copy(grader.lab).answer("add", "%%px\ndef add(a, b):\n    return a\n")
    submissions = handed_in(folder, {"ada": right, "bob": no_mean, "cy": wrong})
    store = Store(folder / "out")
    with store.locked():
        results = grade_all(grader, submissions, store, jobs=jobs)
    return {result.student: result for result in results}


def test_a_wrong_timed_answer_that_ran_with_others_runs_again_alone(tmp_path: Path) -> None:
    """So does the reference in the test of the lab, which would fail on a busy machine."""
    grader = Disturbed()
    found = graded(grader, tmp_path, jobs=2)
    assert {student: result.points for student, result in found.items()} == {
        "ada": 10, "bob": 7, "cy": 7,
    }  # fmt: skip
    assert (found["ada"].status, found["bob"].status) == ("passed", "partial")
    assert found["cy"].exercises[0].status == "failed"
    for student in ("the reference", "ada", "bob", "cy"):
        whole, again = grader.cells[student]
        assert again < whole, "only as far as the checks of what is timed"
        assert grader.beside[student] == 0
    assert len(grader.cells["the stub"]) == 1
    stored = Store(tmp_path / "out").load("ada")
    assert stored is not None and stored.points == 10


def test_an_answer_that_ran_alone_does_not_run_again(tmp_path: Path) -> None:
    grader = Disturbed()
    assert graded(grader, tmp_path, jobs=1)["ada"].points == 8
    assert len(grader.cells["ada"]) == 1


@pytest.mark.parametrize("path", numbered(ROOT / "solutions", ".ipynb"), ids=lambda p: p.stem)
def test_which_exercises_are_timed(path: Path) -> None:
    timed = [e.key for e in find_lab(path.stem).exercises if e.timed]
    assert timed == (["ping_pong"] if path.stem == "01_mpi" else [])
