"""Derives labs and solutions. Keeps outputs that are up to date, and text that people typed."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from nbformat import NotebookNode

from parlab.runtime.paths import write_atomically
from parlab_staff.course.checkout import Course
from parlab_staff.course.lab import Lab
from parlab_staff.course.problems import AuthorError
from parlab_staff.notebooks import make
from parlab_staff.notebooks.make import OWN
from parlab_staff.notebooks.package_digest import package_digest

BUSY_PERCENT, BUSY_SECONDS = 40, 0.3


@dataclass
class Deriver:
    """One run of `make notebooks`. Its methods return True on success."""

    course: Course
    force: bool = False  # overwrite what people typed
    run: bool = True

    def derive_lab(self, lab: Lab) -> bool:
        """Write the learner's copy."""
        path = self.course.lab_path(lab)
        notebook = make.lab_notebook(lab)
        if not self._may_replace(path, notebook):
            return False
        self._write(path, notebook, "written")
        return True

    def derive_solution(self, lab: Lab) -> bool:
        """Write the solutions with their outputs. Run them if the stored outputs may be old."""
        path = self.course.solution_path(lab)
        notebook = make.solution_notebook(lab)
        if not self._may_replace(path, notebook):
            return False
        package = package_digest(self.course.root)
        stored = _readable(path)
        usable = stored is not None and has_outputs_of(stored, notebook)
        if usable and (not self.run or stored.metadata[OWN].get("package") == package):
            package = stored.metadata[OWN].get("package")
            make.with_outputs_of(notebook, stored)
            what = "written, not run: its code is that of the stored outputs"
        elif not self.run:
            self._print(path, "out of date, and not run")
            return True
        else:
            what = self._execute(lab, notebook)
            if what is None:
                return False
        notebook.metadata[OWN]["package"] = package
        notebook.metadata[OWN]["outputs"] = make.outputs_digest(notebook)
        self._write(path, notebook, what)
        return True

    def _execute(self, lab: Lab, notebook: NotebookNode) -> str | None:
        """Run all cells. Return what to report. If a cell fails, print that and return None."""
        from parlab_staff.notebooks.execute import execute

        path = self.course.solution_path(lab)
        # Readers will see the timings and curves of this run.
        if psutil.cpu_percent(BUSY_SECONDS) > BUSY_PERCENT:
            self._print(path, "this machine is busy, and measurements will be wrong")
        start, total = time.monotonic(), 0

        def progress(cell: int, cells: int) -> None:
            nonlocal total
            total = cells
            if sys.stdout.isatty():
                _overwrite(f"{self.course.shown(path)}: cell {cell} of {cells}")
            elif cell == 1:
                self._print(path, f"running {cells} cells")

        try:
            execute(notebook, lab, self.course.solutions, progress)
        except AuthorError as error:
            print_problems(error, self.course)
            return None
        return f"ran {total} cells in {time.monotonic() - start:.0f} s"

    def _write(self, path: Path, notebook: NotebookNode, what: str) -> None:
        text = make.to_text(notebook)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            self._print(path, "up to date")
        else:
            write_atomically(path, text)
            self._print(path, what)

    def _may_replace(self, path: Path, notebook: NotebookNode) -> bool:
        if self.force or not edited(path, notebook):
            return True
        advice = "copy it elsewhere if you need it, then add --force"
        if path.parent == self.course.solutions:
            advice = f"edit {path.with_suffix('.py').name} instead; --force discards this edit"
        self._print(path, f"kept, since someone edited it: {advice}")
        return False

    def _print(self, path: Path, text: str) -> None:
        if sys.stdout.isatty():
            _overwrite("")
        print(f"{self.course.shown(path)}: {text}", flush=True)


def print_problems(error: AuthorError, course: Course) -> None:
    """Print one line for each problem."""
    if sys.stdout.isatty():
        _overwrite("")
    for problem in error.problems:
        print(problem.shown(course.root), flush=True)


def _overwrite(text: str) -> None:
    """Replace the terminal's last line, which progress may have used."""
    print(f"\r\x1b[K{text}", end="", flush=True)


def edited(path: Path, notebook: NotebookNode) -> bool:
    """Return True if the file has text that would be lost if `notebook` replaced it.

    Outputs do not count, because running the notebook again restores them.
    """
    try:
        stored = make.read(path)
    except ValueError:
        return True
    if stored is None:
        return False
    text = make.text_digest(stored)
    derived = stored.metadata.get(OWN, {}).get("derived")
    return text not in (derived, make.text_digest(notebook))


def has_outputs_of(stored: NotebookNode, notebook: NotebookNode) -> bool:
    """Return True if the stored notebook ran this code, and its outputs did not change since."""
    own = stored.metadata.get(OWN, {})
    return (
        make.code_digest(stored) == make.code_digest(notebook)
        and own.get("outputs") == make.outputs_digest(stored)
        and all(c.execution_count is not None for c in stored.cells if c.cell_type == "code")
    )


def _readable(path: Path) -> NotebookNode | None:
    try:
        return make.read(path)
    except ValueError:
        return None


def differences(course: Course, lab: Lab) -> list[str]:
    """Return what `make notebooks` would change, one line for each file. Run nothing."""
    found = []
    path = course.lab_path(lab)
    text = make.to_text(make.lab_notebook(lab))
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        found.append(_difference(course, path, lab))
    path = course.solution_path(lab)
    stored, notebook = _readable(path), make.solution_notebook(lab)
    if stored is None or make.without_outputs(stored) != notebook:
        found.append(_difference(course, path, lab))
    elif not has_outputs_of(stored, notebook):
        text = "its outputs were changed after it ran; run `make notebooks`"
        found.append(f"{course.shown(path)}: {text}")
    return found


def _difference(course: Course, path: Path, lab: Lab) -> str:
    what = "differs from" if path.exists() else "is missing; derive it from"
    return f"{course.shown(path)}: {what} {course.shown(lab.path)}; run `make notebooks`"
