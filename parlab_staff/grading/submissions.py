"""Finds submissions: the student and the file of each."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from parlab_staff.grading.student_names import clean_name

# Folders that tools create next to notebooks.
_NOT_STUDENTS = {".ipynb_checkpoints", "__pycache__", "__MACOSX", ".git", ".venv", "node_modules"}
# The folders of a handout. A folder that contains one of these belongs to one student.
_OF_A_HANDOUT = {"labs", "book", "parlab"}
# Browsers and file systems change endings, so only a file's contents count. Names may contain any
# character.
_ANY = re.IGNORECASE | re.DOTALL
_NOTEBOOK = re.compile(r"(?P<stem>.*?)\.ipynb(\.(txt|json))?", _ANY)
_ARCHIVE = re.compile(r"(?P<stem>.*?)(\.(tar|ipynb))?\.(zip|rar|7z|gz|tgz|tar|xz|bz2)", _ANY)
_OTHER = re.compile(r"(?P<stem>.*?)(\.ipynb)?(\.[^.]*)?", _ANY)
_DEEPEST = 100  # levels of folders below a student's folder
_MOST_BESIDE = 100  # how many files next to a student's notebook are examined


@dataclass(frozen=True)
class Submission:
    """One student's notebook.

    Attributes:
        student: the folder's or the file's name.
        path: the notebook; None if there is none, or if it is not clear which one counts.
        problem: why `path` is None.
        given: True if something was handed in, even if it cannot be graded as it is.
        other_files: the student's other files, notebooks first; none of them is graded.
        notes: for the instructor.
    """

    student: str
    path: Path | None
    problem: str = ""
    given: bool = True
    other_files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def submitted(self) -> str:
        """The time when the file was last written, in ISO 8601; "" if unknown."""
        if self.path is None:
            return ""
        try:
            return datetime.fromtimestamp(os.lstat(self.path).st_mtime).astimezone().isoformat()
        except (OSError, ValueError, OverflowError):  # no file, or a time beyond the calendar
            return ""


@dataclass
class Collected:
    """The submissions and other files below the given paths.

    Attributes:
        submissions: one for each student, by name.
        ignored: files in a class's folder that belong to no student, by name.
    """

    submissions: list[Submission] = field(default_factory=list)
    ignored: list[Path] = field(default_factory=list)


def find_submissions(paths: list[Path], lab: str) -> Collected:
    """Find the submissions below `paths`: notebooks, folders of a student, folders of a class.

    A student's notebook may be anywhere in the student's folder. A folder belongs to a class if its
    subfolders contain notebooks, or if it is the only path and none of its notebooks has the lab's
    name. If a student has two submissions, both are reported and neither is chosen. Files that are
    not notebooks are reported, too. Raises ValueError for a path that does not exist.
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
            found.append(_of_student(path, lab, _owner(path)))
    collected.submissions = _one_each(found)
    return collected


def _of_file(path: Path, lab: str) -> Submission:
    stem = _stem(path)
    if _ARCHIVE.fullmatch(path.name):
        return Submission(clean_name(stem), None, _packed(path))
    return Submission(_owner(path.resolve().parent) if stem == lab else clean_name(stem), path)


def _owner(folder: Path) -> str:
    """Return the student of a folder: its name or, for a handout's folder, its parent's name."""
    around = (folder.resolve(), *folder.resolve().parents)
    return clean_name(next(one.name for one in around if one.name not in _OF_A_HANDOUT))


def _is_class(folder: Path, lab: str, alone: bool) -> bool:
    entries = _entries(folder)
    own = [path for path in entries if is_notebook(path)]
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
            found.append(Submission(clean_name(path.name), None, problem))
        elif path.is_dir() and path.name not in _NOT_STUDENTS:
            if path.name.startswith(".") and not _notebooks(path):
                continue  # settings of a tool, such as .vscode
            found.append(_of_student(path, lab, clean_name(path.name)))
        elif path.is_dir():
            if any(map(is_notebook, _files(path))):
                ignored.append(path)
        elif _ARCHIVE.fullmatch(path.name):
            found.append(_of_file(path, lab))
        elif is_notebook(path):
            # In a class's folder, a notebook has its student's name.
            found.append(Submission(clean_name(_stem(path)), path))
        elif not path.name.startswith("."):
            ignored.append(path)
    return found


def _of_student(folder: Path, lab: str, student: str) -> Submission:
    notebooks = _notebooks(folder)
    of_lab = [path for path in notebooks if _stem(path) == lab]
    for found in (of_lab, notebooks):
        if len(found) == 1:
            others = _other_files(found[0], notebooks, folder)
            return Submission(student, found[0], other_files=others)
    if notebooks:
        names = _named(of_lab or notebooks, folder)
        return Submission(
            student, None, f"it is not clear which notebook counts: {names}. Keep only that one"
        )
    if not all(os.access(path, os.R_OK | os.X_OK) for path in (folder, *_folders(folder))):
        problem = "its folder cannot be read: change its permissions"
        return Submission(student, None, problem)
    others = sorted(p for p in _files(folder, _NOT_STUDENTS) if not p.name.startswith("."))
    packed = [path for path in others if _ARCHIVE.fullmatch(path.name)]
    if packed:
        return Submission(student, None, _packed(packed[0]))
    if copies := sorted(filter(is_notebook, _files(folder))):
        problem = f"the only notebooks are where tools keep theirs: {_named(copies, folder)}"
        return Submission(student, None, problem)
    if others:
        problem = f"no notebook was handed in, only {_named(others, folder)}"
        return Submission(student, None, problem)
    return Submission(student, None, "the folder holds nothing", given=False)


def _other_files(graded: Path, notebooks: list[Path], folder: Path) -> tuple[Path, ...]:
    """Return the student's other notebooks, followed by the student's other files."""
    others = [path for path in notebooks if path != graded]
    files = _files(folder, _NOT_STUDENTS | {"book", "parlab"})
    files = sorted(path for path in files if not path.name.startswith(".") and path != graded)
    return (*others, *(path for path in files if path not in others))[:_MOST_BESIDE]


def _named(paths: list[Path], folder: Path) -> str:
    return ", ".join(str(path.relative_to(folder)) for path in paths[:5])


def _packed(path: Path) -> str:
    return f"{path.name} is an archive: unpack it into a folder with the student's name"


def _notebooks(folder: Path) -> list[Path]:
    """Return all notebooks below a student's folder, including links and unreadable ones.

    Notebooks in hidden folders, where editors keep copies, count only if there are no others.
    """
    found = sorted(filter(is_notebook, _files(folder, _NOT_STUDENTS)))
    visible = [p for p in found if not any(f[0] == "." for f in p.relative_to(folder).parts[:-1])]
    return visible or found


def _files(folder: Path, skipped: set[str] = frozenset()) -> Iterator[Path]:
    """Yield files and links below a folder, and folders that are too deep to search."""
    for present, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - skipped)
        linked = [name for name in folders if os.path.islink(os.path.join(present, name))]
        deep = len(Path(present).relative_to(folder).parts) >= _DEEPEST
        yield from (Path(present, name) for name in (*files, *(folders if deep else linked)))
        folders[:] = [] if deep else [name for name in folders if name not in linked]


def _folders(folder: Path) -> Iterator[str]:
    for present, folders, _ in os.walk(folder):
        yield from (os.path.join(present, name) for name in folders)


def is_notebook(path: Path) -> bool:
    """Return True if this is a notebook, and not a `._x` of macOS."""
    named = _NOTEBOOK.fullmatch(path.name) and not path.name.startswith("._")
    return bool(named) and (path.is_symlink() or not path.is_dir())


def _stem(path: Path) -> str:
    found = _NOTEBOOK.fullmatch(path.name) or _ARCHIVE.fullmatch(path.name)
    return found["stem"] if found else path.stem


def bare_name(path: Path) -> str:
    """Return the name of a file without its endings: eve for eve.ipynb.docx."""
    return _OTHER.fullmatch(path.name)["stem"]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _one_each(found: list[Submission]) -> list[Submission]:
    by_student = defaultdict(list)
    for submission in found:
        by_student[submission.student].append(submission)
    chosen = []
    for student, of_student in sorted(by_student.items()):
        several = [s for s in of_student if s.given]
        if len(several) <= 1:
            chosen.append((several or of_student)[0])
        else:
            paths = ", ".join(str(s.path or s.problem) for s in several)
            problem = f"it is not clear which of these counts: {paths}. Keep only that one"
            chosen.append(Submission(student, None, problem))
    return chosen
