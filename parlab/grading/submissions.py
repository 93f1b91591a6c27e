"""Finds what was handed in: which student, and which file."""

import os
import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

# What tools put beside notebooks.
_NOT_STUDENTS = {".ipynb_checkpoints", "__pycache__", "__MACOSX", ".git", ".venv", "node_modules"}
# The folders of a handout: a folder with one of these is one student's.
_OF_A_HANDOUT = {"labs", "book", "parlab"}
# Browsers and file systems change the ending; what is in the file counts.
_NOTEBOOK = re.compile(r"(?P<stem>.*?)\.ipynb(\.(txt|json))?", re.IGNORECASE)
_ARCHIVE = re.compile(
    r"(?P<stem>.*?)(\.(tar|ipynb))?\.(zip|rar|7z|gz|tgz|tar|xz|bz2)", re.IGNORECASE
)
_DEEPEST = 8  # folders below a student's


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


@dataclass
class Collected:
    """What is below the paths that were given.

    Attributes:
        submissions: one for each student, by name.
        ignored: files in a class's folder that are no student's, in the order of their names.
    """

    submissions: list[Submission] = field(default_factory=list)
    ignored: list[Path] = field(default_factory=list)


def find_submissions(paths: list[Path], lab: str) -> Collected:
    """What is below `paths`: notebooks, folders of a student, folders of a class.

    A student's notebook is found wherever it lies in the student's folder. A folder is a class's
    when there are notebooks in its folders, or when it is the only path and none of its notebooks
    is named after the lab. Two submissions of one student are told, and neither is chosen; so is
    whatever was handed in and is no notebook. Raises ValueError for a path that does not exist.
    """
    collected = Collected()
    found = []
    for path in paths:
        if not os.path.lexists(path):
            raise ValueError(f"{path} does not exist: SUBMISSION is a notebook or a folder of them")
        if not path.is_dir():
            found.append(_of_file(path, lab))
        elif _is_class(path, lab, alone=len(paths) == 1):
            found += _of_class(path, lab, collected.ignored)
        else:
            found.append(_of_student(path, lab))
    collected.submissions = _one_each(found)
    return collected


def claim(collected: Collected, student: str) -> None:
    """Where this student has no submission, an ignored file of that name is one, and is told."""
    for path in collected.ignored:
        if _name(path.stem) == _name(student).strip():
            collected.ignored.remove(path)
            problem = f"no notebook is among what was handed in: {path.name}"
            collected.submissions.append(Submission(student, None, problem))
            collected.submissions.sort(key=lambda one: one.student)
            return


def _of_file(path: Path, lab: str) -> Submission:
    stem = _stem(path)
    if _ARCHIVE.fullmatch(path.name):
        return Submission(_name(stem), None, _packed(path))
    named_after_lab = stem == lab and path.resolve().parent.name
    return Submission(_name(path.resolve().parent.name if named_after_lab else stem), path)


def _is_class(folder: Path, lab: str, alone: bool) -> bool:
    entries = _entries(folder)
    own = [path for path in entries if _is_notebook(path)]
    no_student = _OF_A_HANDOUT | _NOT_STUDENTS
    students = [path for path in entries if path.is_dir() and path.name not in no_student]
    if any(_notebooks(path) for path in students if not path.is_symlink()):
        return True
    packed = [path for path in entries if _ARCHIVE.fullmatch(path.name)]
    named = lab in [_stem(path) for path in own]
    return alone and not named and bool(own or packed or students)


def _of_class(folder: Path, lab: str, ignored: list[Path]) -> list[Submission]:
    found = []
    for path in _entries(folder):
        if path.is_symlink() and path.is_dir():
            problem = "its folder is a link: collect the folder itself"
            found.append(Submission(_name(path.name), None, problem))
        elif path.is_dir():
            if path.name not in _NOT_STUDENTS:
                found.append(_of_student(path, lab))
        elif _ARCHIVE.fullmatch(path.name):
            found.append(_of_file(path, lab))
        elif _is_notebook(path):
            # In a class's folder it is called as its student, whatever that is.
            found.append(Submission(_name(_stem(path)), path))
        elif not path.name.startswith("."):
            ignored.append(path)
    return found


def _of_student(folder: Path, lab: str) -> Submission:
    student, notebooks = _name(folder.resolve().name), _notebooks(folder)
    of_lab = [path for path in notebooks if _stem(path) == lab]
    for found in (of_lab, notebooks):
        if len(found) == 1:
            return Submission(student, found[0])
    if notebooks:
        names = ", ".join(str(path.relative_to(folder)) for path in of_lab or notebooks)
        return Submission(
            student, None, f"which notebook counts: {names}? Leave one, or name it {lab}"
        )
    others = sorted(path for path in _files(folder) if not path.name.startswith("."))
    packed = [path for path in others if _ARCHIVE.fullmatch(path.name)]
    if packed:
        return Submission(student, None, _packed(packed[0]))
    if others:
        names = ", ".join(str(path.relative_to(folder)) for path in others[:5])
        return Submission(student, None, f"no notebook is among what was handed in: {names}")
    return Submission(student, None, "the folder holds nothing", given=False)


def _packed(path: Path) -> str:
    return f"{path.name} is an archive: unpack it into a folder of the student's name"


def _notebooks(folder: Path) -> list[Path]:
    """All below a student's folder; also links and what is unreadable: that is told."""
    return sorted(path for path in _files(folder) if _is_notebook(path))


def _files(folder: Path) -> list[Path]:
    """Files and links below a student's folder, without those that tools made."""
    found = []
    for here, folders, files in os.walk(folder):
        deep = len(Path(here).relative_to(folder).parts) >= _DEEPEST
        linked = [name for name in folders if os.path.islink(os.path.join(here, name))]
        skipped = {*linked, *_NOT_STUDENTS, *(name for name in folders if name[0] == ".")}
        folders[:] = [] if deep else sorted(set(folders) - skipped)
        found += [Path(here, name) for name in (*files, *linked)]
    return found


def _is_notebook(path: Path) -> bool:
    """`._x` is macOS's own."""
    named = _NOTEBOOK.fullmatch(path.name) and not path.name.startswith("._")
    return bool(named) and (path.is_symlink() or not path.is_dir())


def _stem(path: Path) -> str:
    found = _NOTEBOOK.fullmatch(path.name) or _ARCHIVE.fullmatch(path.name)
    return found["stem"] if found else path.stem


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
            paths = ", ".join(str(s.path or s.problem) for s in several)
            chosen.append(Submission(student, None, f"which of these counts: {paths}?"))
    return chosen
