"""Reports files that were handed in with a notebook but not graded, if they may matter."""

import ast
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from parlab.runtime.source_code import statements_with_magics
from parlab_staff.grading.graded_lab import GradedLab
from parlab_staff.grading.match import Matched, WrongLab, match
from parlab_staff.grading.reading import NotGiven, NotReadable, read_bytes, read_notebook
from parlab_staff.grading.submissions import Submission, is_notebook

MOST_NOTEBOOKS = 20  # how many other notebooks of a student are compared with the graded one


def fingerprint(submission: Submission) -> str:
    """Return a digest of the files that `sentences` depends on; "" without other files."""
    digest = hashlib.sha256()
    for path in submission.other_files:
        digest.update(os.fsencode(path.name) + b"\0")
        if path in _notebooks(submission):
            try:
                digest.update(read_bytes(path))
            except (NotReadable, NotGiven) as error:
                digest.update(str(error).encode())
    return digest.hexdigest()[:16] if submission.other_files else ""


def sentences(
    lab: GradedLab, submission: Submission, submitted: NotebookNode, matched: Matched
) -> list[str]:
    """Return sentences about files that are not graded, for the student and for the instructor."""
    sources = [cell.source for cell in submitted.cells if cell.cell_type == "code"]
    found = [_compared(lab, submission, path, matched) for path in _notebooks(submission)]
    modules = {name for source in sources for name in _imported(source)}
    found += [_missing_module(name, submission) for name in sorted(modules) if not _installed(name)]
    files = [path for path in submission.other_files if not is_notebook(path)]
    found += [
        f"Your notebook uses {path.name}, which was not there when it was graded: only the "
        "notebook runs."
        for path in files
        if any(path.name in source for source in sources)
    ]
    return [sentence for sentence in found if sentence]


def _notebooks(submission: Submission) -> list[Path]:
    return [path for path in submission.other_files if is_notebook(path)][:MOST_NOTEBOOKS]


def _compared(lab: GradedLab, submission: Submission, path: Path, matched: Matched) -> str:
    """Return a sentence if another notebook is newer, or answers more exercises; else ""."""
    graded = submission.path
    try:
        other = match(lab, read_notebook(path))
    except WrongLab:
        return ""
    except (NotReadable, NotGiven) as error:
        return f"{graded.name} was graded. {path.name} was not, and cannot be read: {error}."
    own, others = _answered(lab, matched), _answered(lab, other)
    newer = path.lstat().st_mtime > graded.lstat().st_mtime
    if other.answers == matched.answers or not (others - own or (others and newer)):
        return ""
    later = " and was saved later" if newer else ""
    return (
        f"{graded.name} was graded and has answers to {len(own)} of {len(lab.exercises)} "
        f"exercises. {path.name} was not graded: it has answers to {len(others)}{later}. If it is "
        f"the one that counts, hand in only that one, with the name {lab.name}.ipynb."
    )


def _answered(lab: GradedLab, matched: Matched) -> set[str]:
    return {exercise.key for exercise in lab.exercises if matched.given(exercise.key)}


def _imported(source: str) -> Iterator[str]:
    """Yield the names of the modules and packages that a cell imports."""
    for statement in statements_with_magics(source):
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield (node.module or "").partition(".")[0]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # such as __main__, which has no specification
        return True


def _missing_module(name: str, submission: Submission) -> str:
    files = [
        p for p in submission.other_files if name in (p.stem, p.parent.name) and p.suffix == ".py"
    ]
    if files:
        return (
            f"Your notebook imports `{name}`, and {files[0].name} was not graded: only the "
            "notebook runs. Copy its code into a cell of the notebook."
        )
    return f"Your notebook imports `{name}`, which is not installed where labs are graded."
