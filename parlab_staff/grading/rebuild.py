"""Builds the notebook that runs for a submission: the lab's cells, with the student's answers."""

from dataclasses import replace

from nbformat import NotebookNode, v4

from parlab.runtime.source_code import bound_names, free_names
from parlab_staff.grading import restore_names
from parlab_staff.grading.cells import added_definitions
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.match import Matched

OWN = "own-"  # the prefix of ids of the student's own cells
RESTORE = "restore-"  # the prefix of ids of cells that restore the lab's names


def build(lab: GradedLab, matched: Matched) -> NotebookNode:
    """Return code cells without outputs, in the lab's order, with the lab's ids for its cells.

    An exercise without an answer gets its stub. The student's own cells keep their positions. Those
    after the last check are left out, because they cannot change a score.
    """
    answers = {e.cell: matched.answers[e.key] for e in lab.exercises}
    stubs = {e.cell: lab.stub_of(e) for e in lab.exercises}
    restoring = restore_names.restoring_cells(lab)
    notebook = v4.new_notebook()
    own_cells = 0

    def add_own(sources: list[str]) -> None:
        nonlocal own_cells
        for source in sources:
            notebook.cells.append(_code(source, f"{OWN}{own_cells}"))
            own_cells += 1

    waiting = matched.after.get(None, [])
    for cell in lab.cells:
        if cell.role != "hidden-check":
            # Hidden checks, which the student's copy lacks, come directly after the visible ones.
            add_own(waiting)
            waiting = []
        add_own(matched.before.get(cell.id, []))
        for number, source in enumerate(restoring.get(cell.id, [])):
            notebook.cells.append(_code(source, f"{RESTORE}{number}-{cell.id}"))
        answer = answers.get(cell.id)
        source = stubs.get(cell.id, cell.source) if answer is None else answer
        notebook.cells.append(_code(source, cell.id))
        waiting = waiting + matched.after.get(cell.id, [])
    return notebook


def up_to(notebook: NotebookNode, exercises: list[GradedExercise]) -> NotebookNode:
    """Return the notebook up to the last check of these exercises."""
    checks = {cell for e in exercises for cell in (*e.checks, *e.hidden)}
    last = max(i for i, cell in enumerate(notebook.cells) if cell.id in checks)
    return v4.new_notebook(cells=notebook.cells[: last + 1])


def alone(lab: GradedLab, matched: Matched, exercise: GradedExercise) -> NotebookNode:
    """Return the notebook for one exercise, which no other exercise can disturb.

    Only its own checks run. Answers that the exercise does not use are replaced by their stubs.
    """
    used = uses(lab, matched, exercise)
    answers = {key: source if key in used else None for key, source in matched.answers.items()}
    return v4.new_notebook(cells=_for_one(lab, replace(matched, answers=answers), exercise))


def uses(lab: GradedLab, matched: Matched, exercise: GradedExercise) -> set[str]:
    """Return the keys of the exercise, and of all exercises whose answers it and its checks use.

    They may use them directly, or through other cells of the lab or the student.
    """
    cells = _for_one(lab, matched, exercise)
    own = {exercise.cell, *exercise.checks, *exercise.hidden}
    # An answer that is not valid Python counts, too, because its exercise is still used.
    names = {e.cell: e.names for e in lab.exercises}
    defined_in = {
        name: cell
        for cell in cells
        for name in (*names.get(cell.id, ()), *bound_names(cell.source))
    }
    waiting = [cell for cell in cells if cell.id in own]
    reached = set()
    while waiting:
        cell = waiting.pop()
        if cell.id not in reached:
            reached.add(cell.id)
            read = free_names(cell.source) - bound_names(cell.source)
            waiting += [defined_in[name] for name in read if name in defined_in]
    return {e.key for e in lab.exercises if e.cell in reached}


def _for_one(lab: GradedLab, matched: Matched, exercise: GradedExercise) -> list[NotebookNode]:
    """Return the cells up to an exercise's checks. Of other checks, keep only definitions."""
    cells = up_to(build(lab, matched), [exercise]).cells
    others = {cell.id for cell in lab.cells if cell.is_check}
    others -= {*exercise.checks, *exercise.hidden}
    for cell in cells:
        if cell.id in others:
            cell.source = added_definitions(cell.source, "")
    return [cell for cell in cells if cell.source or cell.id not in others]


def _code(source: str, cell_id: str) -> NotebookNode:
    return v4.new_code_cell(source, id=cell_id)
