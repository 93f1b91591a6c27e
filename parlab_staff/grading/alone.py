"""Runs exercises alone, so that no exercise can change the score of another.

Messages, threads, hooks, seeds, open files, and memory outlive the cell that left them, and later
exercises cannot run after a process has ended. Therefore, an exercise that is not right and ran
after another one runs again in a fresh kernel, on fresh ranks.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from nbformat import NotebookNode

from parlab_staff.grading import rebuild
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.match import Matched
from parlab_staff.grading.no_op_answers import Worthless
from parlab_staff.grading.rebuild import OWN
from parlab_staff.grading.results import ExerciseResult, GradeStatus
from parlab_staff.grading.run import CellRun, NotebookRun
from parlab_staff.grading.score import score

SETTLED = (GradeStatus.PASSED, GradeStatus.MISSING, GradeStatus.GRADER_ERROR)
Run = Callable[[NotebookNode, float], NotebookRun]  # runs a notebook, with a time limit in seconds


def disturbed(
    lab: GradedLab, matched: Matched, ran: NotebookRun, results: list[ExerciseResult]
) -> list[GradedExercise]:
    """Return the exercises that are not right, and that an earlier exercise may have disturbed.

    If one of the student's own cells ended the run, leave out the exercises after it, because it
    would end each further run, too.
    """
    reached = [cell for cell, r in ran.cells.items() if r.outcome != GradeStatus.NOT_REACHED]
    own_end = bool(ran.ended) and reached[-1:] != [] and reached[-1].startswith(OWN)
    found, before = [], False
    for exercise, result in zip(lab.exercises, results, strict=True):
        given = matched.given(exercise.key)
        unreached = result.status == GradeStatus.NOT_REACHED
        if before and given and result.status not in SETTLED and not (unreached and own_end):
            found.append(exercise)
        before |= given
    return found


def graded_alone(
    lab: GradedLab,
    matched: Matched,
    exercises: list[GradedExercise],
    results: list[ExerciseResult],
    worthless: Worthless,
    run: Run,
    seconds: float,
) -> list[ExerciseResult]:
    """Run `exercises` alone. Return all results, with theirs replaced.

    If an exercise does worse alone, its first result counts. All runs together take at most
    `seconds`.
    """
    found = {result.key: result for result in results}
    deadline = time.monotonic() + seconds
    for exercise in exercises:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        ran = run(rebuild.alone(lab, matched, exercise), left)
        # Add the cells that were left out of this run.
        ran.cells = {cell.id: CellRun() for cell in lab.cells} | ran.cells
        result = next(r for r in score(lab, matched, ran, worthless) if r.key == exercise.key)
        found[exercise.key] = _chosen(found[exercise.key], result)
    return list(found.values())


def _chosen(together: ExerciseResult, alone: ExerciseResult) -> ExerciseResult:
    if alone.status == GradeStatus.NOT_REACHED or alone.points is None:
        return together
    if alone.points < (together.points or 0):
        return together
    if alone.points == together.points:
        return alone
    note = f"it earns {alone.points:g} alone, and {together.points:g} after the other exercises"
    return replace(alone, notes=[*alone.notes, note])
