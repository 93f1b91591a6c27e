"""Records which exercises of the labs are done, in a folder next to the labs.

A check that passes calls `record(key)`. JupyterLab's start page shows each lab's `bar`, and a lab
prints `line()` when its ranks start. Each finished exercise is an empty file in `.progress`, so
that labs that run at the same time never overwrite each other. To reset one, delete its file.

Nothing is recorded in a folder without a start page, because graders and tests run in such folders.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from parlab.reference import in_place
from parlab.runtime.notebook import read_cells

FOLDER = ".progress"
START_PAGE = "START.md"

_HEADING = re.compile(r"^## (?:\d+[a-z]?\. )?(.+)$", re.MULTILINE)
_NAME = re.compile(r"\d\d_\w+")


@dataclass(frozen=True)
class Lab:
    """A notebook, the headings of its exercises by key, in order, and the keys that are done."""

    path: Path
    exercises: dict[str, str]
    done: frozenset[str]

    @property
    def count(self) -> str:
        """The number of exercises done, such as `3 of 7`."""
        return f"{len(self.done)} of {len(self.exercises)}"

    @property
    def bar(self) -> str:
        """The progress as a bar with a square for each exercise, such as `■■■□□□□`."""
        return "■" * len(self.done) + "□" * (len(self.exercises) - len(self.done))

    @property
    def marked(self) -> str:
        """All exercises, each with a mark, such as `✓ Ping-pong, ○ A deadlock`."""
        return ", ".join(
            f"{'✓' if key in self.done else '○'} {heading}"
            for key, heading in self.exercises.items()
        )


def record(key: str, folder: Path | None = None) -> str | None:
    """Record that the check of exercise `key` has passed. Return `3 of 7 done in lab 01_mpi`.

    `folder` contains the labs, and is the working folder by default. Record nothing and return None
    if no lab there has this exercise, if the reference is in place of the learner's code, or if the
    folder is not writable. Only one of the ranks calls this.
    """
    folder = folder or Path.cwd()
    if in_place(key) or key not in {known for lab in labs(folder) for known in lab.exercises}:
        return None
    try:
        (folder / FOLDER).mkdir(exist_ok=True)
        (folder / FOLDER / key).touch()
    except OSError:  # a check must not fail because the folder is read-only
        return None
    lab = next(lab for lab in labs(folder) if key in lab.exercises)
    return f"{lab.count} done in lab {lab.path.stem}"


def labs(folder: Path) -> list[Lab]:
    """Return the labs in `folder` by name, without copies, or [] if it has no start page."""
    if not (folder / START_PAGE).is_file():
        return []
    try:
        passed = {path.name for path in (folder / FOLDER).iterdir()}
    except OSError:  # nothing is done yet
        passed = set()
    paths = (path for path in sorted(folder.glob("*.ipynb")) if _NAME.fullmatch(path.stem))
    read = (_read(path, passed) for path in paths)
    return [lab for lab in read if lab is not None]


def line(folder: Path | None = None) -> str | None:
    """Return a line with the progress in the lab that this kernel runs, or None if it is unknown.

    JupyterLab passes the name of the notebook to its kernel.
    """
    name = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    for lab in labs(folder or Path.cwd()):
        if lab.path.name == name:
            return f"{lab.count} done: {lab.marked}"
    return None


def _read(path: Path, passed: set[str]) -> Lab | None:
    """Return the lab in a notebook, or None if it has no exercises or is just being written."""
    try:
        cells = read_cells(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    heading, exercises = "", {}
    for cell in cells:
        if cell.kind == "markdown":
            heading = (_HEADING.findall(cell.source) or [heading])[-1]
        elif cell.role == "check" and cell.key:
            exercises[cell.key] = heading or cell.key
    return Lab(path, exercises, frozenset(passed & set(exercises))) if exercises else None
