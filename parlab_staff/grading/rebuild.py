"""Builds the notebook that runs for a submission: the lab's cells, with the student's answers."""

from dataclasses import replace

from nbformat import NotebookNode, v4

from parlab.runtime.source_code import bound_names, free_names
from parlab_staff.grading import restore_names
from parlab_staff.grading.cells import without_nbval
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.match import Matched

OWN = "own-"  # how the ids of the student's own cells start


def build(lab: GradedLab, matched: Matched) -> NotebookNode:
    """Return code cells without outputs, in the lab's order, with the lab's ids for its cells.

    An exercise without an answer has its stub. The student's own cells stay where they were.
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
        add_own(restoring.get(cell.id, []))
        answer = answers.get(cell.id)
        source = stubs.get(cell.id, cell.source) if answer is None else answer
        notebook.cells.append(_code(source, cell.id))
        waiting = waiting + matched.after.get(cell.id, [])
    add_own(waiting)
    return notebook


def up_to(notebook: NotebookNode, exercises: list[GradedExercise]) -> NotebookNode:
    """Return the notebook up to the last check of these exercises."""
    checks = {cell for e in exercises for cell in (*e.checks, *e.hidden)}
    last = max(i for i, cell in enumerate(notebook.cells) if cell.id in checks)
    return v4.new_notebook(cells=notebook.cells[: last + 1])


def alone(lab: GradedLab, matched: Matched, exercise: GradedExercise) -> NotebookNode:
    """Return the notebook for one exercise: nothing that another exercise leaves can disturb it.

    Only its own checks run, and of the other answers only those that it uses. The others are stubs.
    """
    used = uses(lab, matched, exercise)
    answers = {key: source if key in used else None for key, source in matched.answers.items()}
    notebook = up_to(build(lab, replace(matched, answers=answers)), [exercise])
    own = {*exercise.checks, *exercise.hidden}
    others = {cell.id for cell in lab.cells if cell.is_check} - own
    return v4.new_notebook(cells=[cell for cell in notebook.cells if cell.id not in others])


def uses(lab: GradedLab, matched: Matched, exercise: GradedExercise) -> set[str]:
    """Return the exercises whose answers an exercise and its checks use, with its own.

    They may use them through the lab's cells, and through the student's own.
    """
    answers = {e.cell: matched.answers[e.key] or "" for e in lab.exercises}
    checks = {cell.id: cell.source for cell in lab.cells if cell.is_check}
    sources = [*answers.values(), *(s for own in matched.after.values() for s in own)]
    sources += [c.source for c in lab.cells if c.id not in answers and c.id not in checks]
    defining = [(bound_names(source), free_names(source)) for source in sources]
    wanted = free_names(answers[exercise.cell]).union(
        *(free_names(checks[cell]) for cell in (*exercise.checks, *exercise.hidden))
    )
    size = 0
    while size != len(wanted):
        size = len(wanted)
        wanted = wanted.union(*(read for bound, read in defining if bound & wanted))
    found = {e.key for e in lab.exercises if bound_names(answers[e.cell]) & wanted}
    return found | {exercise.key}


def _code(source: str, cell_id: str) -> NotebookNode:
    return v4.new_code_cell(without_nbval(source), id=cell_id)
