"""A lab without ranks. The real grader grades it, with real kernels or in this process."""

import atexit
import threading
from math import inf
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbformat import NotebookNode, v4

from parlab_staff.course.percent_source import read_lab
from parlab_staff.grading.graded_lab import GradedLab
from parlab_staff.grading.grader import Grader
from parlab_staff.grading.run import CellRun, Limits, NotebookRun
from parlab_staff.notebooks import make
from tests.grading import small_lab

SOURCE = Path(__file__).with_name("01_plain.py")


def make_course(root: Path) -> GradedLab:
    """Return the lab without `%%px`, for a kernel without ranks."""
    root.mkdir(exist_ok=True)
    source = root / SOURCE.name
    lines = SOURCE.read_text().splitlines(keepends=True)
    source.write_text("".join(line for line in lines if not line.startswith("# %%px")))
    return small_lab.make_course(root / "course", source)


def in_process_lab() -> GradedLab:
    """Return the lab with its rank cells, which `InProcess` runs without ranks."""
    lab = read_lab(SOURCE)
    solution, handed_out = make.solution_notebook(lab), make.lab_notebook(lab)
    code = [cell for cell in solution.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs = []
    ran = run_in_process(v4.new_notebook(cells=code)).cells
    for cell in code:
        data = [{"application/json": value} for value in ran[cell.id].json]
        cell.outputs = [v4.new_output("display_data", data=d) for d in data]
    return GradedLab(lab.name, SOURCE, solution, handed_out)


class InProcess(Grader):
    """The real grader, but cells run in this process, so that their code must be trusted."""

    def __init__(self, lab: GradedLab) -> None:
        super().__init__(lab, Limits(), "none", stop=threading.Event())
        self.ran: NotebookNode | None = None

    def run(self, student: str, notebook: NotebookNode, seconds: float = inf) -> NotebookRun:
        self.ran = notebook
        return run_in_process(notebook)


def run_in_process(notebook: NotebookNode) -> NotebookRun:
    """Run the cells in a new shell of IPython. Rank cells run as ordinary cells."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(history_manager=None)
    atexit.unregister(shell.atexit_operations)  # it would collect garbage once for each shell
    shell.InteractiveTB.set_mode("Minimal")  # nobody reads tracebacks, and they take long to make
    shell.register_magic_function(lambda line, cell: _ran(shell, cell), "cell", "px")
    cells = {}
    try:
        for cell in notebook.cells:
            with capture_output() as captured:
                result = shell.run_cell(cell.source)
            cells[cell.id] = _cell_run(result, captured)
    finally:
        InteractiveShell.clear_instance()
    return NotebookRun(cells)


def _ran(shell: InteractiveShell, cell: str) -> None:
    result = shell.run_cell(cell)
    if error := result.error_before_exec or result.error_in_exec:
        raise error


def _cell_run(result: Any, captured: Any) -> CellRun:
    error = result.error_before_exec or result.error_in_exec
    values = [o.data["application/json"] for o in captured.outputs if "application/json" in o.data]
    if error is None:
        return CellRun("ok", text=captured.stdout, json=values)
    return CellRun("error", type(error).__name__, str(error), text=captured.stdout, json=values)
