"""Reads `solutions/NN_topic.py`, a jupytext percent script, into cells with line numbers."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import nbformat

from parlab.runtime.notebook import Cell
from parlab_staff.course.lab import NAME, Lab

_PERCENT = {"extension": ".py", "format_name": "percent"}
_CELL_LINE = re.compile(r"^\s*#\s*%%(%*\s.*)?$")
# Metadata that jupytext adds to convert the notebook back to a script.
_JUPYTEXT_OWN = {"lines_to_next_cell", "cell_marker", "region_name", "cell_depth"}


def read_lab(path: Path) -> Lab:
    """Read a source. The lab's `problems` lists what cannot be read; `rules` checks the rest."""
    try:
        lab = Lab(path, text=path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        lab = Lab(path)
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
    together = _percent_cells("\n".join(lines[top:]))
    if together is not None and len(together) == len(starts):
        parts = [[cell] for cell in together]
    else:  # to name the line of what jupytext cannot read
        ends = [*starts[1:], len(lines)]
        texts = ["\n".join(lines[s:e]) + "\n" for s, e in zip(starts, ends, strict=True)]
        parts = [_percent_cells(text) or [] for text in texts]
    ids = _Ids()
    for start, read in zip(starts, parts, strict=True):
        cell = _cell(lab, start, lines[start], read, ids)
        if cell is not None:
            lab.cells.append(cell)
    if not lab.problems and together is not None and len(together) != len(starts):
        text = "a # %% line in a string or a code block: jupytext does not see a cell there"
        lab.problem(1, text)


def _percent_cells(text: str) -> list[nbformat.NotebookNode] | None:
    """Return the cells that jupytext reads; None if it cannot read them."""
    # Imported here because this takes long, and the grader reads only notebooks.
    import jupytext

    try:
        return jupytext.reads(text, _PERCENT).cells
    except (AttributeError, TypeError, ValueError, nbformat.ValidationError):
        return None


def _after_header(lines: list[str]) -> int:
    """Return the index of the first line below jupytext's header, a YAML block in comments."""
    if lines and lines[0].rstrip() == "# ---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == "# ---":
                return number + 1
    return 0


def _cell(
    lab: Lab, start: int, line: str, found: list[nbformat.NotebookNode], ids: "_Ids"
) -> Cell | None:
    """Return the cell that begins with `line`. If it cannot be read, report that instead."""
    unreadable = f"cannot read this cell line: {line.strip()}"
    if len(found) != 1:
        lab.problem(start + 1, unreadable)
        return None
    [read] = found
    metadata = {k: v for k, v in read.metadata.items() if k not in _JUPYTEXT_OWN}
    if "incorrectly_encoded_metadata" in metadata or "title" in metadata:
        lab.problem(start + 1, f'{unreadable}; write tags=["check"] exercise="key" points=3')
        return None
    cell = Cell("", read.cell_type, read.source, metadata, line=start + 1)
    return replace(cell, id=ids.next(cell))


class _Ids:
    """Makes cell ids: from the exercise's key and the role, or from the position.

    Counting starts again after each exercise, so that a new cell changes few ids.
    """

    def __init__(self) -> None:
        self.section = "start"
        self.counts: Counter[str] = Counter()

    def next(self, cell: Cell) -> str:
        if cell.key and cell.role:
            stem = f"{cell.role}-{cell.key}"
            if cell.role == "exercise":
                self.section = f"after-{cell.key}"
        else:
            stem = f"{self.section}-{cell.role or cell.kind}"
        self.counts[stem] += 1
        count = self.counts[stem]
        named = bool(cell.key and cell.role)
        return stem if named and count == 1 else f"{stem}-{count}"
