"""The small lab as graders have it: executed solution and stubs, made by the real authoring."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from parlab.authoring import notebooks
from parlab.authoring.running import execute
from parlab.authoring.source import read_lab
from parlab.grading.master import Master, find_master

SOURCE = Path(__file__).with_name("01_small.py")


def make_course(root: Path) -> Master:
    """Write `solutions/01_small.ipynb`, executed, and `labs/01_small.ipynb` below `root`."""
    lab = read_lab(SOURCE)
    solution = notebooks.solution_notebook(lab)
    (root / "solutions").mkdir(parents=True)
    execute(solution, lab, root / "solutions", lambda number, of: None)
    notebooks.write(root / "solutions" / "01_small.ipynb", notebooks.to_text(solution))
    notebooks.write(
        root / "labs" / "01_small.ipynb", notebooks.to_text(notebooks.lab_notebook(lab))
    )
    return find_master(str(root / "solutions" / "01_small.ipynb"))


class Copy:
    """A student's copy of the lab, to be changed and handed in."""

    def __init__(self, master: Master, solved: bool = True) -> None:
        self.master = master
        self.notebook: NotebookNode = nbformat.reads(nbformat.writes(master.stub), as_version=4)
        if solved:
            for exercise in master.exercises:
                self.answer(exercise.key, self.reference(exercise.key))

    @property
    def cells(self) -> list[NotebookNode]:
        return self.notebook.cells

    def reference(self, key: str) -> str:
        [cell] = [c for c in self.master.cells if c.id == f"exercise-{key}"]
        return cell.source

    def cell(self, cell_id: str) -> NotebookNode:
        [cell] = [c for c in self.cells if c.id == cell_id]
        return cell

    def answer(self, key: str, source: str) -> "Copy":
        self.cell(f"exercise-{key}").source = source
        return self

    def stub(self, key: str) -> "Copy":
        [cell] = [c for c in self.master.stub.cells if c.id == f"exercise-{key}"]
        return self.answer(key, cell.source)

    def insert(self, source: str, before: str) -> "Copy":
        """A cell of the student's own before cell `before`."""
        at = self.cells.index(self.cell(before))
        self.cells.insert(at, nbformat.v4.new_code_cell(source))
        return self

    def text(self) -> str:
        return nbformat.writes(self.notebook)
