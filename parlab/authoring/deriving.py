"""Derives labs and solutions; what is up to date stays, and what people typed."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from nbformat import NotebookNode

from parlab.authoring import notebooks
from parlab.authoring.course import Course
from parlab.authoring.dependencies import WITHOUT_OUTPUT, package_digest
from parlab.authoring.notebooks import OWN
from parlab.authoring.problems import AuthorError
from parlab.authoring.source import Lab
from parlab.files import write_atomically

BUSY_PERCENT, BUSY_SECONDS = 40, 0.3


@dataclass
class Deriver:
    """One run of `make notebooks`; its methods say whether all went well."""

    course: Course
    force: bool = False  # overwrite what people typed
    run: bool = True

    def derive_lab(self, lab: Lab) -> bool:
        """Write the learner's copy."""
        path = self.course.lab_path(lab)
        notebook = notebooks.lab_notebook(lab)
        if not self._may_replace(path, notebook):
            return False
        self._write(path, notebook, "written")
        return True

    def derive_solution(self, lab: Lab) -> bool:
        """Write the solutions with their outputs, run where the stored ones may be old."""
        path = self.course.solution_path(lab)
        notebook = notebooks.solution_notebook(lab)
        if not self._may_replace(path, notebook):
            return False
        package = package_digest(self.course.root, WITHOUT_OUTPUT)
        stored = _readable(path)
        usable = stored is not None and has_outputs_of(stored, notebook)
        if usable and (not self.run or stored.metadata[OWN].get("package") == package):
            package = stored.metadata[OWN].get("package")
            notebooks.with_outputs_of(notebook, stored)
            what = "written, not run: its code is that of the stored outputs"
        elif not self.run:
            self._tell(path, "out of date, and not run")
            return True
        else:
            what = self._execute(lab, notebook)
            if what is None:
                return False
        notebook.metadata[OWN]["package"] = package
        notebook.metadata[OWN]["outputs"] = notebooks.outputs_digest(notebook)
        self._write(path, notebook, what)
        return True

    def _execute(self, lab: Lab, notebook: NotebookNode) -> str | None:
        """Run all cells; what to say of it, or None when that has been said: it failed."""
        from parlab.authoring.running import execute

        path = self.course.solution_path(lab)
        # Readers will see the timings and curves of this run.
        if psutil.cpu_percent(BUSY_SECONDS) > BUSY_PERCENT:
            self._tell(path, "this machine is busy, and measurements will be wrong")
        start, total = time.monotonic(), 0

        def progress(cell: int, cells: int) -> None:
            nonlocal total
            total = cells
            if sys.stdout.isatty():
                _overwrite(f"{self.course.shown(path)}: cell {cell} of {cells}")
            elif cell == 1:
                self._tell(path, f"running {cells} cells")

        try:
            execute(notebook, lab, self.course.solutions, progress)
        except AuthorError as error:
            tell(error, self.course)
            return None
        return f"ran {total} cells in {time.monotonic() - start:.0f} s"

    def _write(self, path: Path, notebook: NotebookNode, what: str) -> None:
        text = notebooks.to_text(notebook)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            self._tell(path, "up to date")
        else:
            write_atomically(path, text)
            self._tell(path, what)

    def _may_replace(self, path: Path, notebook: NotebookNode) -> bool:
        if self.force or not edited(path, notebook):
            return True
        advice = "copy it elsewhere if you need it, then add --force"
        if path.parent == self.course.solutions:
            advice = f"edit {path.with_suffix('.py').name} instead; --force discards this edit"
        self._tell(path, f"kept, since someone edited it: {advice}")
        return False

    def _tell(self, path: Path, text: str) -> None:
        if sys.stdout.isatty():
            _overwrite("")
        print(f"{self.course.shown(path)}: {text}", flush=True)


def tell(error: AuthorError, course: Course) -> None:
    """Print what is wrong, a line each."""
    if sys.stdout.isatty():
        _overwrite("")
    for problem in error.problems:
        print(problem.shown(course.root), flush=True)


def _overwrite(text: str) -> None:
    """Put a text in the place of the terminal's last line, which progress may have used."""
    print(f"\r\x1b[K{text}", end="", flush=True)


def edited(path: Path, notebook: NotebookNode) -> bool:
    """Whether the file holds text that would be lost if `notebook` took its place.

    Outputs are no such text: running the notebook again gives them back.
    """
    try:
        there = notebooks.read(path)
    except ValueError:
        return True
    if there is None:
        return False
    text = notebooks.text_digest(there)
    derived = there.metadata.get(OWN, {}).get("derived")
    return text not in (derived, notebooks.text_digest(notebook))


def has_outputs_of(stored: NotebookNode, notebook: NotebookNode) -> bool:
    """Whether the stored notebook has run the code of `notebook`, and its outputs are untouched."""
    own = stored.metadata.get(OWN, {})
    return (
        notebooks.code_digest(stored) == notebooks.code_digest(notebook)
        and own.get("outputs") == notebooks.outputs_digest(stored)
        and all(c.execution_count is not None for c in stored.cells if c.cell_type == "code")
    )


def _readable(path: Path) -> NotebookNode | None:
    try:
        return notebooks.read(path)
    except ValueError:
        return None


def differences(course: Course, lab: Lab) -> list[str]:
    """What `make notebooks` would change, a line for each file; nothing is run."""
    found = []
    path = course.lab_path(lab)
    text = notebooks.to_text(notebooks.lab_notebook(lab))
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        found.append(_difference(course, path, lab))
    path = course.solution_path(lab)
    stored, notebook = _readable(path), notebooks.solution_notebook(lab)
    if stored is None or notebooks.without_outputs(stored) != notebook:
        found.append(_difference(course, path, lab))
    elif not has_outputs_of(stored, notebook):
        text = "its outputs are not those of its run; run `make notebooks`"
        found.append(f"{course.shown(path)}: {text}")
    return found


def _difference(course: Course, path: Path, lab: Lab) -> str:
    what = "differs from" if path.exists() else "is missing; derive it from"
    return f"{course.shown(path)}: {what} {course.shown(lab.path)}; run `make notebooks`"
