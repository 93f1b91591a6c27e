"""The model of a lab: its cells and exercises. Needs only the standard library.

`percent_source.read_lab` reads a lab from its source, `read_notebook` from an executed notebook.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parlab.runtime.notebook import Cell, read_cells
from parlab_staff.course.problems import Problem

NAME = re.compile(r"\d\d_[a-z][a-z0-9_]*")
# The tag of an exercise whose checks depend on time. If its answer fails while other submissions
# are graded, the grader runs it once more, alone.
TIMED = "timed"


@dataclass
class Lab:
    """A lab, from its source or from a notebook.

    Only a lab from its source has `text` (the whole source) and `problems` (what cannot be read).
    """

    path: Path
    cells: list[Cell] = field(default_factory=list)
    text: str = ""
    problems: list[Problem] = field(default_factory=list)

    @property
    def name(self) -> str:
        """`01_mpi`."""
        return self.path.stem

    @property
    def topic(self) -> str:
        """`mpi`: also the name of its module in `parlab.checks`."""
        return self.name[3:]

    def problem(self, line: int, text: str) -> None:
        self.problems.append(Problem(self.path, line, text))

    @property
    def exercises(self) -> list["Exercise"]:
        return [Exercise(self, c) for c in self.cells if c.role == "exercise" and c.key]

    @property
    def keys(self) -> list[str]:
        """The exercises' keys, in order."""
        return [exercise.key for exercise in self.exercises]

    def exercise(self, key: str) -> "Exercise | None":
        """Return the exercise with this key; None if this lab has none."""
        return next((one for one in self.exercises if one.key == key), None)


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lab; `cell` is the cell that learners complete."""

    lab: Lab = field(repr=False)
    cell: Cell

    @property
    def key(self) -> str:
        """The name of the function, of the check, of the files, and in the gradebook."""
        assert self.cell.key is not None
        return self.cell.key

    @property
    def checks(self) -> list[Cell]:
        return self._cells("check")

    @property
    def hidden_checks(self) -> list[Cell]:
        return self._cells("hidden-check")

    def _cells(self, role: str) -> list[Cell]:
        return [cell for cell in self.lab.cells if cell.role == role and cell.key == self.key]

    @property
    def is_timed(self) -> bool:
        return TIMED in self.cell.tags

    @property
    def function_name(self) -> str:
        """The function or class that the check cell passes to the check.

        Raises KeyError if no cell calls the check.
        """
        for cell in self.checks:
            for node in ast.walk(ast.parse(cell.code)):
                match node:
                    case ast.Call(func=ast.Attribute(attr=self.key), args=[first, *_]):
                        return ast.unparse(first)
        raise KeyError(f"no check cell calls check.{self.key}(…)")


def read_notebook(path: Path) -> Lab:
    """Return the lab that this notebook contains. Raises as `read_cells` does."""
    return Lab(path, read_cells(path))


def lab_name(word: str, known: Sequence[str]) -> str:
    """Return the name in `known`, such as `01_mpi`, for `01_mpi`, `mpi`, `01`, or a path.

    Raises ValueError if there is none.
    """
    stem = Path(word).stem
    for name in known:
        if stem in (name, name[:2], name[3:]):
            return name
    raise ValueError(f"there is no lab {word!r}; the labs are: {', '.join(known) or 'none here'}")
