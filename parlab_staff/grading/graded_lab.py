"""A lab as the grader knows it: the instructor's executed solution, and what was handed out."""

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

TELLING = 12  # characters, of a line that tells what a hidden check does


@dataclass(frozen=True)
class GradedExercise:
    """One exercise: its cell, and the cells that say whether it is right.

    Attributes:
        key: its name everywhere.
        names: the functions and classes that the reference defines.
        checks: points of each visible check, by cell id.
        hidden: (points, expected values) of each hidden check, by cell id.
        timed: whether its checks judge by the clock, which other work disturbs.
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
    """A lab that submissions are graded by; read once, so that a whole batch meets the same one.

    Attributes:
        name: `01_mpi`.
        path: of the executed solution.
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
        """In the lab's order."""
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

        What comes after the last check grades nothing, and a cell that fails on purpose defines
        nothing: a lab's deadlocks would be waited for once a student.
        """
        cells = cells_of(self.solution)
        code = [c for c in cells if c.kind == "code" and "raises-exception" not in c.tags]
        checks = [i for i, cell in enumerate(code) if cell.is_check]
        return code[: checks[-1] + 1] if checks else []

    @cached_property
    def builds_on(self) -> dict[str, frozenset[str]]:
        """By cell, whose functions its code calls, by exercise: itself, or through helpers.

        Helpers are functions and classes of the lab's cells before it. An exercise's cell is the
        student's: what that one calls is not said here.
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
        """The lines of hidden checks that tell something, and that no student was given."""
        hidden = [c.source for c in self.cells if c.role == "hidden-check"]
        lines = {line.strip() for source in hidden for line in source.split("\n")}
        given = {line.strip() for cell in self.handed_out.cells for line in cell.source.split("\n")}
        return frozenset(line for line in lines - given if len(line) >= TELLING)

    def stub_of(self, exercise: GradedExercise) -> str:
        """The source of the exercise's cell as it was handed out."""
        return next((c.source for c in self.handed_out.cells if c.id == exercise.cell), "")

    def _points(self, cell: Cell) -> float:
        points = cell.metadata.get("points", 0)
        if isinstance(points, bool) or not isinstance(points, int | float) or points < 0:
            where = f"{self.path.name}: the check {cell.id}"
            raise ValueError(f"{where}: points is a number, 0 or more, not {points!r}")
        return float(points)

    def _expected(self, cell: Cell) -> Any:
        shown = cell.displayed
        if len(shown) != 1:
            raise ValueError(
                f"{self.path.name}: the hidden check {cell.id} has {len(shown)} stored results "
                "where one is needed: run `make notebooks`"
            )
        if share_right(shown[0], shown[0])[1] == 0:
            raise ValueError(f"{self.path.name}: the hidden check {cell.id} shows no values")
        return shown[0]


def find_lab(lab: str, root: Path = ROOT) -> GradedLab:
    """The lab that is meant by `01_mpi`, `01`, `mpi`, or by the path of an executed solution.

    Raises ValueError where there is none, or where it cannot grade.
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
                "what a check prints, a submission can print as well"
            )
    return found
