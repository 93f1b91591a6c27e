"""A student's copy of a lab, which cases change and hand in."""

import nbformat
from nbformat import NotebookNode

from parlab_staff.grading.graded_lab import GradedLab


class Copy:
    """A copy of the lab as handed out. With `solved`, it has the reference's answers."""

    def __init__(self, lab: GradedLab, solved: bool = True) -> None:
        self.lab = lab
        self.notebook: NotebookNode = nbformat.reads(nbformat.writes(lab.handed_out), as_version=4)
        if solved:
            self.solved()

    @property
    def cells(self) -> list[NotebookNode]:
        return self.notebook.cells

    def reference(self, key: str) -> str:
        [cell] = [c for c in self.lab.cells if c.id == f"exercise-{key}"]
        return cell.source

    def cell(self, cell_id: str) -> NotebookNode:
        [cell] = [c for c in self.cells if c.id == cell_id]
        return cell

    def answer(self, key: str, source: str) -> "Copy":
        self.cell(f"exercise-{key}").source = source
        return self

    def stub(self, key: str) -> "Copy":
        [cell] = [c for c in self.lab.handed_out.cells if c.id == f"exercise-{key}"]
        return self.answer(key, cell.source)

    def stubs(self) -> "Copy":
        for exercise in self.lab.exercises:
            self.stub(exercise.key)
        return self

    def solved(self) -> "Copy":
        for exercise in self.lab.exercises:
            self.answer(exercise.key, self.reference(exercise.key))
        return self

    def insert(self, source: str, before: str) -> "Copy":
        """Insert a cell of the student's own before cell `before`."""
        at = self.cells.index(self.cell(before))
        self.cells.insert(at, nbformat.v4.new_code_cell(source))
        return self

    def text(self) -> str:
        return nbformat.writes(self.notebook)
