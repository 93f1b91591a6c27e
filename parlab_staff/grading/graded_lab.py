"""A lab for the grader: the instructor's executed solution, and the lab as students got it."""

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from parlab.runtime.notebook import Cell, cells_of
from parlab.runtime.paths import ROOT, numbered
from parlab.runtime.source_code import defined_names, read_names, statements
from parlab_staff.course.lab import Lab, lab_name
from parlab_staff.grading.compare import share_right
from parlab_staff.notebooks.make import digest, read

TELLING = 12  # a hidden check's line with this many characters is kept secret


@dataclass(frozen=True)
class GradedExercise:
    """One exercise: its cell, and the cells that check it.

    Attributes:
        key: its name everywhere.
        names: the functions and classes that the reference defines.
        checks: points of each visible check, by cell id.
        hidden: (points, expected values) of each hidden check, by cell id.
        timed: True if its checks measure time, so that other work can disturb them.
    """

    key: str
    cell: str
    names: frozenset[str]
    checks: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, tuple[float, Any]] = field(default_factory=dict)
    timed: bool = False

    @property
    def of(self) -> float:
        return sum(self.checks.values()) + sum(points for points, _ in self.hidden.values())


@dataclass(frozen=True)
class GradedLab:
    """A lab for grading. It is read once, so that all submissions are graded by the same lab.

    Attributes:
        name: `01_mpi`.
        path: the file of the executed solution.
        solution: the executed solution.
        handed_out: the lab as students got it.
    """

    name: str
    path: Path
    solution: NotebookNode
    handed_out: NotebookNode

    @cached_property
    def digest(self) -> str:
        return digest([self.solution, self.handed_out])

    @cached_property
    def exercises(self) -> list[GradedExercise]:
        """The exercises with points, in the lab's order."""
        exercises = Lab(self.path, cells_of(self.solution)).exercises
        found = [
            GradedExercise(
                key=one.key,
                cell=one.cell.id,
                names=defined_names(one.cell.source),
                checks={cell.id: self._points(cell) for cell in one.checks},
                hidden={
                    cell.id: (self._points(cell), self._expected(cell))
                    for cell in one.hidden_checks
                },
                timed=one.is_timed,
            )
            for one in exercises
        ]
        return [exercise for exercise in found if exercise.of]

    @cached_property
    def cells(self) -> list[Cell]:
        """The code cells to run.

        Cells after the last check are left out, because they cannot change a score. So are cells
        that fail on purpose: they define nothing, and each deadlock would cost time for every
        student.
        """
        cells = cells_of(self.solution)
        code = [c for c in cells if c.kind == "code" and "raises-exception" not in c.tags]
        checks = [i for i, cell in enumerate(code) if cell.is_check]
        return code[: checks[-1] + 1] if checks else []

    @cached_property
    def builds_on(self) -> dict[str, frozenset[str]]:
        """For each of the lab's own cells, the exercises whose functions it calls.

        A cell calls them directly, or through functions and classes that earlier cells of the lab
        define. The sets of exercise cells are empty, because students write these cells.
        """
        of_name = {name: frozenset({e.key}) for e in self.exercises for name in e.names}
        answers = {e.cell for e in self.exercises}
        found = {}
        for cell in self.cells:
            found[cell.id] = frozenset()
            for node in statements(cell.source) if cell.id not in answers else ():
                text = ast.unparse(node)
                reached = (of_name.get(name, frozenset()) for name in read_names(text))
                reached = frozenset().union(*reached)
                found[cell.id] |= reached
                of_name |= dict.fromkeys(defined_names(text), reached)
        return found

    @cached_property
    def hidden_lines(self) -> frozenset[str]:
        """The lines of hidden checks that students must not see.

        Short lines are left out, and so are lines that the lab as handed out contains.
        """
        hidden = [c.source for c in self.cells if c.role == "hidden-check"]
        lines = {line.strip() for source in hidden for line in source.split("\n")}
        given = {line.strip() for cell in self.handed_out.cells for line in cell.source.split("\n")}
        return frozenset(line for line in lines - given if len(line) >= TELLING)

    def stub_of(self, exercise: GradedExercise) -> str:
        """Return the source of the exercise's cell as it was handed out."""
        return next((c.source for c in self.handed_out.cells if c.id == exercise.cell), "")

    def _points(self, cell: Cell) -> float:
        points = cell.metadata.get("points", 0)
        if isinstance(points, bool) or not isinstance(points, int | float) or points < 0:
            where = f"{self.path.name}: the check {cell.id}"
            raise ValueError(f"{where}: points must be a number of at least 0, not {points!r}")
        return float(points)

    def _expected(self, cell: Cell) -> Any:
        shown = cell.displayed
        if len(shown) != 1:
            raise ValueError(
                f"{self.path.name}: the hidden check {cell.id} has {len(shown)} stored results, "
                "but needs exactly one: run `make notebooks`"
            )
        if share_right(shown[0], shown[0])[1] == 0:
            raise ValueError(f"{self.path.name}: the hidden check {cell.id} shows no values")
        return shown[0]


def find_lab(lab: str, root: Path = ROOT) -> GradedLab:
    """Return the lab named `01_mpi`, `01`, or `mpi`, or the lab with this executed solution.

    Raises ValueError if there is no such lab, or if it cannot be graded.
    """
    path = Path(lab)
    if path.suffix != ".ipynb":
        known = {path.stem: path for path in numbered(root / "solutions", ".ipynb")}
        path = known[lab_name(lab, list(known))]
    elif not path.is_file():
        raise ValueError(f"{path} does not exist: LAB is a lab's name, or its executed solution")
    given = path.resolve().parents[1] / "labs" / path.name
    solution, handed_out = read(path), read(given)
    if solution is None or handed_out is None:
        raise ValueError(f"{given} is missing: run `make notebooks`")
    found = GradedLab(path.stem, path.resolve(), solution, handed_out)
    if not found.exercises:
        raise ValueError(f"{path.name} has no check with points: there is nothing to grade")
    for exercise in found.exercises:
        if not exercise.hidden or not all(points for points, _ in exercise.hidden.values()):
            raise ValueError(
                f"{path.name}: exercise {exercise.key} needs a hidden check, each with points: "
                "a submission can print whatever a visible check prints"
            )
    return found
