"""Runs a lab's solutions in a kernel, and keeps only outputs that another run can repeat."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from parlab.runtime.ansi import without_escapes
from parlab_staff.course.lab import Lab
from parlab_staff.course.problems import AuthorError, Problem

# Rank cells have their own deadlines, and a lab runs in under two minutes.
CELL_SECONDS = 300


def execute(
    notebook: NotebookNode, lab: Lab, folder: Path, progress: Callable[[int, int], None]
) -> None:
    """Run all cells in the working directory `folder`, and fill in their outputs.

    Args:
        progress: called before each cell with its number, from 1, and the number of cells.

    Raises:
        AuthorError: a cell failed. The message has the cell's line in the source, and the error.
    """
    code = [number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    at = code[0] if code else 0

    def starts(cell: NotebookNode, cell_index: int) -> None:
        nonlocal at
        at = cell_index
        if cell_index in code:
            progress(code.index(cell_index) + 1, len(code))

    def problem(text: str) -> AuthorError:
        where = f"cell {code.index(at) + 1} of {len(code)}"
        return AuthorError([Problem(lab.path, lab.cells[at].line, f"{where} {text}")])

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        on_cell_start=starts,
        # The kernel's log contains nothing about the lab.
        extra_arguments=["--log-level=CRITICAL"],
    )
    # With this variable, ipykernel would not capture output that C code writes.
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    # nbclient adds the kernel's version, which our notebooks do not store.
    metadata = notebook.metadata.copy()
    try:
        client.execute(env=env)
    except CellExecutionError as error:
        raise problem(_failure(error)) from None
    except CellTimeoutError:
        raise problem(f"does not end in {CELL_SECONDS} s") from None
    except DeadKernelError:
        raise problem("killed its kernel") from None
    except AssertionError:
        # nbclient raises this error when Ctrl-C has ended its kernel.
        raise KeyboardInterrupt from None
    notebook.metadata = metadata
    _clean(notebook, lab, folder.parent)


def _failure(error: CellExecutionError) -> str:
    first, *rest = without_escapes(f"{error.ename}: {error.evalue}").splitlines()
    shown = without_escapes(error.traceback).strip().splitlines()
    # The message of a rank cell's error says everything.
    details = rest or shown
    return "\n".join([f"fails: {first}", *(f"    {line}" for line in details)])


# Which outputs to keep


def _clean(notebook: NotebookNode, lab: Lab, root: Path) -> None:
    problems: list[Problem] = []
    for source, cell in zip(lab.cells, notebook.cells, strict=True):
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            if output.output_type == "error":
                output.traceback = [_without_paths(line, root) for line in output.traceback]
            elif path := _path_in(output, root):
                text = f"the output holds a path of this machine, {path}: print what repeats"
                problems.append(Problem(lab.path, source.line, text))
        if source.role == "hidden-check" and not any(_is_json(o) for o in cell.outputs):
            text = "a hidden-check displays its values as JSON: end it with JSON({…})"
            problems.append(Problem(lab.path, source.line, text))
    if problems:
        raise AuthorError(problems)


def _is_json(output: NotebookNode) -> bool:
    return "application/json" in output.get("data", {})


def _places(root: Path) -> list[tuple[str, str]]:
    """Return folders of this machine and their replacements, the longest path first."""
    places = [(root, ""), (Path(sys.prefix), "…/"), (Path.home(), "~/")]
    places.append((Path(tempfile.gettempdir()), "…/"))
    named = [(f"{path}/", short) for path, short in places if len(path.parts) > 1]
    return sorted(named, key=lambda place: -len(place[0]))


def _without_paths(text: str, root: Path) -> str:
    for path, short in _places(root):
        text = text.replace(path, short)
    return text


def _path_in(output: NotebookNode, root: Path) -> str | None:
    texts = [output.get("text", ""), *output.get("data", {}).values()]
    for path, _ in _places(root):
        if any(isinstance(text, str) and path in text for text in texts):
            return path
    return None
