"""Finds the line of the notebook at which a rank is, from the rank's stack."""

import re
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePath
from textwrap import dedent

from ipykernel.compiler import get_file_name

from parlab.runtime.library_files import is_library

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.M)


@dataclass
class Cells:
    """The sources of the cells that were sent to ranks, by the file name that IPython uses."""

    sources: dict[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def file(code: str) -> str:
        """Return the file name that IPython gives to a cell.

        The name is a hash of the source, so it is the same on all ranks. Its folder is not.
        """
        return PurePath(get_file_name(code)).name

    def add(self, code: str) -> None:
        self.sources[self.file(code)] = code.split("\n")

    def line(self, file: str, number: int) -> str | None:
        """Return the text of a line, or None if the file is not a cell or has no such line."""
        lines = self.sources.get(PurePath(file).name)
        if lines is None or not 1 <= number <= len(lines):
            return None
        return lines[number - 1].strip()


# Magics whose text is Python that a rank runs, so that comments can be added to it.
_RUNS_PYTHON = re.compile(r"%%(time|timeit|capture)\b")


def with_lines_of_notebook(cell: str) -> tuple[str, str]:
    """Return the code to send for the text below `%%px`, and the part of it that is Python.

    Comments replace `%%px` and the magics below it, so that the ranks count lines as the notebook
    does. The magics themselves must be the first lines.
    """
    magics = list(takewhile(_RUNS_PYTHON.match, cell.split("\n")))
    # IPython removes the indentation that all lines have, but not if comments without it precede.
    lines = dedent("\n".join(cell.split("\n")[len(magics) :])).split("\n")
    if lines and lines[0].startswith("%%"):
        return cell, cell
    body = "\n".join(["#"] * (1 + len(magics)) + lines)
    return "\n".join([*magics, body]), body


def cell_line(stack: str, cells: Cells) -> int | None:
    """Return the line of the cell, outside of any function, at which the rank is.

    Return None if the rank is not in a cell.
    """
    found = [
        int(frame["line"])
        for frame in _FRAME.finditer(stack)
        if cells.line(frame["file"], int(frame["line"])) is not None
    ]
    return found[-1] if found else None


def is_in(stack: str, file: str) -> bool:
    """Return True if the rank runs the cell of this file."""
    return any(PurePath(frame["file"]).name == file for frame in _FRAME.finditer(stack))


def where(stack: str, cells: Cells) -> str | None:
    """Return where a rank is, such as `line 4: comm.allreduce(x)`, or None if not in a cell.

    This is the innermost line that the learner wrote. If that line is in a function, which may be
    in an earlier cell, the text also contains the line that called the function.
    """
    inside = [
        (frame["function"], int(frame["line"]), text)
        for frame in _FRAME.finditer(stack)
        if (text := cells.line(frame["file"], int(frame["line"]))) is not None
    ]
    if not inside:
        return None
    function, line, text = inside[0]
    if function == "<module>":
        return f"line {line}: {text}"
    _, outer_line, outer_text = inside[-1]
    return f"line {line} of {function}: {text}  (called from line {outer_line}: {outer_text})"


def runs_code(stack: str, cells: Cells) -> bool:
    """Return True if the rank runs a cell or a function that was sent to it."""
    return where(stack, cells) is not None or "do_apply" in _functions(stack)


def _functions(stack: str) -> set[str]:
    return {frame["function"] for frame in _FRAME.finditer(stack)}


def has_not_begun(stack: str) -> bool:
    """Return True if the rank answered, and runs neither a cell nor a function that was sent."""
    return bool(_functions(stack)) and not _functions(stack) & {"do_apply", "run_cell"}


def outside_cells(stack: str) -> str:
    """Return what a rank does if it is not at a line of a cell."""
    functions = _functions(stack)
    if "do_apply" in functions:
        return "is busy with a function that was sent to it (`view.apply`)"
    if "run_cell" in functions:
        return "is about to begin this cell, or has just ended it"
    return "has not begun this cell"


# Files that call torch's C++ code for collectives and backward passes, which may wait for ranks.
_WAITS_IN_TORCH = re.compile(r"/torch/(distributed|autograd|nn/parallel)/")


def in_torch(stack: str) -> bool:
    """Return True if the rank may be waiting in one of torch's own groups (Gloo, NCCL)."""
    first = _FRAME.search(stack)
    return first is not None and bool(_WAITS_IN_TORCH.search(first["file"]))


def in_import(stack: str) -> bool:
    """Return True if the rank is inside an `import`."""
    return any(map(_is_import, _FRAME.finditer(stack)))


def is_importing(stack: str) -> bool:
    """Return True if the rank is importing a library, so that its time does not count.

    The time in a learner's own module counts, because the module may train, or wait for a rank.
    """
    for frame in _FRAME.finditer(stack):
        if _is_import(frame):
            return True
        if not is_library(frame["file"]):
            return False
    return False


def _is_import(frame: re.Match[str]) -> bool:
    return frame["function"] == "_find_and_load" and "importlib" in frame["file"]
