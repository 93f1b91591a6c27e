"""From a rank's stack to the line of the notebook that it is at."""

import re
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePath

from ipykernel.compiler import get_file_name

from parlab.runtime.library_files import is_library

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.M)


@dataclass
class Cells:
    """The sources of the cells that ranks were sent, by the file name that IPython gives them."""

    sources: dict[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def file(code: str) -> str:
        """The name of the file that IPython takes a cell to be.

        It is a hash of the source, below a folder of the process: the same on all ranks but for the
        folder.
        """
        return PurePath(get_file_name(code)).name

    def add(self, code: str) -> None:
        self.sources[self.file(code)] = code.splitlines()

    def line(self, file: str, number: int) -> str | None:
        """The text of that line, or None when the file is not one of the cells."""
        lines = self.sources.get(PurePath(file).name)
        if lines is None or not 1 <= number <= len(lines):
            return None
        return lines[number - 1].strip()


# Magics whose cell is Python that a rank runs, so that comments may be added to it.
_RUNS_PYTHON = re.compile(r"%%(time|timeit|capture)\b")


def with_lines_of_notebook(cell: str) -> tuple[str, str]:
    """Return what to send for the text below `%%px`, and the part of it that is Python.

    Comments in the place of `%%px` and of magics below it make the ranks count lines as the
    notebook shows them. Magics have to be the first lines.
    """
    magics = list(takewhile(_RUNS_PYTHON.match, cell.split("\n")))
    lines = cell.split("\n")[len(magics) :]
    if lines and lines[0].startswith("%%"):
        return cell, cell
    body = "\n".join(["#"] * (1 + len(magics)) + lines)
    return "\n".join([*magics, body]), body


def cell_line(stack: str, cells: Cells) -> int | None:
    """The line of the cell, below any function, that the rank is at; None when in no cell."""
    found = [
        int(frame["line"])
        for frame in _FRAME.finditer(stack)
        if cells.line(frame["file"], int(frame["line"])) is not None
    ]
    return found[-1] if found else None


def is_in(stack: str, file: str) -> bool:
    """Whether the rank runs the cell of this file."""
    return any(PurePath(frame["file"]).name == file for frame in _FRAME.finditer(stack))


def where(stack: str, cells: Cells) -> str | None:
    """`line 4: comm.allreduce(x)` for faulthandler's text; None when no cell is in the stack.

    The innermost line that the learner wrote counts. Where that is in a function, the line that
    called it in the cell is named too, since the function may stand in an earlier cell.
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


def is_at_work(stack: str, cells: Cells) -> bool:
    """Whether the rank is in a cell, or in a function that was sent to it."""
    return where(stack, cells) is not None or "do_apply" in _functions(stack)


def _functions(stack: str) -> set[str]:
    return {frame["function"] for frame in _FRAME.finditer(stack)}


def outside_cells(stack: str) -> str:
    """What a rank does that is at no line of a cell."""
    functions = _functions(stack)
    if "do_apply" in functions:
        return "is busy with a function that was sent to it (`view.apply`)"
    if "run_cell" in functions:
        return "is about to begin this cell, or has just ended it"
    return "has not begun this cell"


# Where a rank may be waiting for others in torch's own C++: a collective, or a backward pass.
_WAITS_IN_TORCH = re.compile(r"/torch/(distributed|autograd|nn/parallel)/")


def in_torch(stack: str) -> bool:
    """Whether the rank may be waiting in a process group of torch's own (Gloo, NCCL)."""
    first = _FRAME.search(stack)
    return first is not None and bool(_WAITS_IN_TORCH.search(first["file"]))


def in_import(stack: str) -> bool:
    """Whether the rank is inside the body of a module, or on the way to it."""
    return any(map(_is_import, _FRAME.finditer(stack)))


def is_importing(stack: str) -> bool:
    """Whether an import is at work, so that its time does not count.

    A file of the learner's that is being imported is part of the cell: it may train or wait there.
    """
    for frame in _FRAME.finditer(stack):
        if _is_import(frame):
            return True
        if not is_library(frame["file"]):
            return False
    return False


def _is_import(frame: re.Match[str]) -> bool:
    return frame["function"] == "_find_and_load" and "importlib" in frame["file"]
