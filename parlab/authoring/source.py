"""Reads `solutions/NN_topic.py`, a jupytext percent script, into cells that know their lines."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nbformat

from parlab.authoring.problems import Problem

ROLES = ("exercise", "check", "hidden-check", "solution")
NAME = re.compile(r"\d\d_[a-z][a-z0-9_]*")

_PERCENT = {"extension": ".py", "format_name": "percent"}
_CELL_LINE = re.compile(r"^\s*#\s*%%(%*\s.*)?$")
# What jupytext adds for the way back, which nobody takes.
_JUPYTEXT_OWN = {"lines_to_next_cell", "cell_marker", "region_name", "cell_depth"}


@dataclass(frozen=True)
class Cell:
    """One cell of a source, as written."""

    line: int  # of its `# %%` line, counted from 1
    kind: str  # "code" or "markdown"
    source: str  # as in a notebook: magics and Markdown without their comment signs
    raw: tuple[str, ...]  # the lines below the `# %%` line
    metadata: dict[str, Any]
    id: str  # the same in the lab and in the solutions

    @property
    def tags(self) -> list[str]:
        return self.metadata.get("tags", [])

    @property
    def role(self) -> str | None:
        return next((role for role in ROLES if role in self.tags), None)

    @property
    def key(self) -> str | None:
        """The exercise it belongs to."""
        key = self.metadata.get("exercise")
        return key if isinstance(key, str) else None


@dataclass
class Lab:
    """A lab's source; `problems` is what kept its cells from being read."""

    path: Path
    text: str
    cells: list[Cell] = field(default_factory=list)
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

    def exercise(self, key: str) -> Cell | None:
        """The exercise cell of `key`, if it is one of this lab's."""
        return next((c for c in self.cells if c.role == "exercise" and c.key == key), None)

    @property
    def keys(self) -> list[str]:
        """The exercises' keys, in order."""
        return [c.key for c in self.cells if c.role == "exercise" and c.key]


def read_lab(path: Path) -> Lab:
    """Read a source. What cannot be read is in the lab's `problems`; other rules: `rules`."""
    try:
        lab = Lab(path, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        lab = Lab(path, "")
        lab.problem(1, f"not UTF-8 text: {error}")
        return lab
    if not NAME.fullmatch(lab.name):
        lab.problem(1, "a lab's source is called NN_topic.py, as 01_mpi.py")
    _read_cells(lab)
    return lab


def _read_cells(lab: Lab) -> None:
    lines = lab.text.split("\n")
    starts = [number for number, line in enumerate(lines) if _CELL_LINE.match(line)]
    if not starts:
        lab.problem(1, "no cells: a cell begins with a line # %%")
        return
    top = _after_header(lines)
    stray = next((n for n in range(top, starts[0]) if lines[n].strip()), None)
    if stray is not None:
        lab.problem(stray + 1, "text before the first # %% line")
    ids = _Ids()
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        cell = _read_cell(lab, start, lines[start:end], ids)
        if cell is not None:
            lab.cells.append(cell)
    below = "\n".join(lines[top:])
    if not lab.problems and len(_percent_cells(below)) != len(lab.cells):
        text = "a # %% line in a string or a code block: jupytext does not see a cell there"
        lab.problem(1, text)


def _percent_cells(text: str) -> list[nbformat.NotebookNode]:
    # Not at the top: who only reads notebooks (a grader, for each student) does not wait for it.
    import jupytext

    return jupytext.reads(text, _PERCENT).cells


def _after_header(lines: list[str]) -> int:
    """The first line below jupytext's header, a YAML block in comments, where there is one."""
    if lines and lines[0].rstrip() == "# ---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == "# ---":
                return number + 1
    return 0


def _read_cell(lab: Lab, start: int, lines: list[str], ids: "_Ids") -> Cell | None:
    """Convert one cell on its own: jupytext gives no line numbers, and we need them."""
    unreadable = f"cannot read this cell line: {lines[0].strip()}"
    try:
        [read] = _percent_cells("\n".join(lines) + "\n")
    except (AttributeError, TypeError, ValueError, nbformat.ValidationError):
        lab.problem(start + 1, unreadable)
        return None
    metadata = {k: v for k, v in read.metadata.items() if k not in _JUPYTEXT_OWN}
    if "incorrectly_encoded_metadata" in metadata or "title" in metadata:
        lab.problem(start + 1, f'{unreadable}; write tags=["check"] exercise="key" points=3')
        return None
    cell = Cell(start + 1, read.cell_type, read.source, tuple(lines[1:]), metadata, id="")
    return replace(cell, id=ids.next(cell))


class _Ids:
    """Cell ids: from the exercise's key and the role, else from the place after an exercise.

    Counting anew after each exercise keeps the ids of all other cells when one is put in.
    """

    def __init__(self) -> None:
        self.section = "start"
        self.seen: Counter[str] = Counter()

    def next(self, cell: Cell) -> str:
        if cell.key and cell.role:
            stem = f"{cell.role}-{cell.key}"
            if cell.role == "exercise":
                self.section = f"after-{cell.key}"
        else:
            stem = f"{self.section}-{cell.role or cell.kind}"
        self.seen[stem] += 1
        count = self.seen[stem]
        named = bool(cell.key and cell.role)
        return stem if named and count == 1 else f"{stem}-{count}"
