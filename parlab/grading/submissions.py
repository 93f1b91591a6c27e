"""Finds what was handed in: which student, and which file."""

import os
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

# What tools put beside notebooks.
_NOT_STUDENTS = {".ipynb_checkpoints", "__pycache__", "__MACOSX", ".git"}


@dataclass(frozen=True)
class Submission:
    """One student's notebook.

    Attributes:
        student: the folder's or the file's name.
        path: the notebook; None where there is none, or where it is not clear which counts.
        problem: why `path` is None.
        given: whether something was handed in, although it cannot be graded as it is.
    """

    student: str
    path: Path | None
    problem: str = ""
    given: bool = True

    @property
    def submitted(self) -> str:
        """When the file was last written, ISO 8601; "" where that is unknown."""
        if self.path is None:
            return ""
        try:
            return datetime.fromtimestamp(os.lstat(self.path).st_mtime).astimezone().isoformat()
        except (OSError, ValueError, OverflowError):  # no file, or a time beyond the calendar
            return ""


def find_submissions(paths: list[Path], lab: str) -> list[Submission]:
    """What is below `paths`: notebooks, folders of a student, folders of a class; by name.

    A folder is a class's when there are notebooks in its folders, or when it is the only path and
    none of its notebooks is named after the lab. Two submissions of one student are told, and
    neither is chosen. Raises ValueError for a path that does not exist.
    """
    found: list[Submission] = []
    for path in paths:
        if not os.path.lexists(path):
            raise ValueError(f"{path} does not exist: SUBMISSION is a notebook or a folder of them")
        if not path.is_dir():
            found.append(_of_file(path, lab))
        elif _is_class(path, lab, alone=len(paths) == 1):
            found += _of_class(path, lab)
        else:
            found.append(_of_student(path, lab))
    return _one_each(found)


def _of_file(path: Path, lab: str) -> Submission:
    named_after_lab = path.stem == lab and path.resolve().parent.name
    return Submission(_name(path.resolve().parent.name if named_after_lab else path.stem), path)


def _is_class(folder: Path, lab: str, alone: bool) -> bool:
    own = _notebooks(folder)
    below = any(_notebooks(sub) for sub in _folders(folder))
    return below or (alone and bool(own) and lab not in [path.stem for path in own])


def _of_class(folder: Path, lab: str) -> list[Submission]:
    files = [Submission(_name(path.stem), path) for path in _notebooks(folder)]
    return files + [_of_student(sub, lab) for sub in _folders(folder)]


def _of_student(folder: Path, lab: str) -> Submission:
    student, notebooks = _name(folder.resolve().name), _notebooks(folder)
    of_lab = [path for path in notebooks if path.stem == lab]
    if len(of_lab) == 1:
        return Submission(student, of_lab[0])
    if len(notebooks) == 1:
        return Submission(student, notebooks[0])
    if not notebooks:
        deeper = [path.name for path in _folders(folder) if _notebooks(path)]
        if deeper:
            where = f"its notebook is in a folder of its own, {deeper[0]}: move it up"
            return Submission(student, None, where)
        return Submission(student, None, "the folder holds no notebook", given=False)
    names = ", ".join(path.name for path in notebooks)
    return Submission(student, None, f"which notebook counts: {names}? Leave one, or name it {lab}")


def _notebooks(folder: Path) -> list[Path]:
    """Also links and what is unreadable: that is told, not overlooked. `._x` is macOS's own."""
    return [
        path
        for path in _entries(folder)
        if path.suffix == ".ipynb"
        and not path.name.startswith("._")
        and (path.is_symlink() or not path.is_dir())
    ]


def _folders(folder: Path) -> list[Path]:
    return [
        path
        for path in _entries(folder)
        if path.is_dir() and not path.is_symlink() and path.name not in _NOT_STUDENTS
    ]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _name(name: str) -> str:
    """macOS stores names decomposed; a roster has them composed."""
    return unicodedata.normalize("NFC", name)


def _one_each(found: list[Submission]) -> list[Submission]:
    by_student = defaultdict(list)
    for submission in found:
        by_student[submission.student].append(submission)
    chosen = []
    for student, theirs in sorted(by_student.items()):
        several = [s for s in theirs if s.given]
        if len(several) <= 1:
            chosen.append((several or theirs)[0])
        else:
            paths = ", ".join(str(s.path) for s in several)
            chosen.append(Submission(student, None, f"which of these counts: {paths}?"))
    return chosen
