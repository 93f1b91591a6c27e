"""Folders with several notebooks, with other files beside the notebook, or without a notebook."""

import os
from pathlib import Path

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)


@case("passed", case.all, student=".ipynb")
def folder_named_ipynb(copy: Copy, path: Path) -> None:
    folder = path.with_name(".ipynb")
    folder.mkdir()
    (folder / "lab.ipynb").write_text(copy.text())


@case("grader_error", None, notes="which")
def two_notebooks(copy: Copy, path: Path) -> None:
    folder = path.with_suffix("")
    folder.mkdir()
    for name in ("draft", "final"):
        (folder / f"{name}.ipynb").write_text(copy.text())


@case("grader_error", None, notes="which of these")
def handed_in_twice(copy: Copy, path: Path) -> None:
    """The student handed in a file and a folder."""
    path.write_text(copy.text(), encoding="utf-8")
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "01_plain.ipynb").write_text(copy.text())


def in_folder(path: Path, files: dict[str, str]) -> None:
    """Hand in a folder in which each file is newer than the one before it."""
    folder = path.with_suffix("")
    folder.mkdir()
    for seconds, (name, text) in enumerate(files.items()):
        (folder / name).write_text(text, encoding="utf-8")
        os.utime(folder / name, (seconds, seconds))


NOT_GRADED = {
    "says": "01_plain-Copy1.ipynb was not graded: it has answers to 3.",
    "notes": "01_plain.ipynb was graded and has answers to 0 of 3 exercises. 01_plain-Copy1",
}


@case("failed", 0, **NOT_GRADED, add="missing", total="missing", mean="missing")
def solved_in_a_copy(copy: Copy, path: Path) -> None:
    stubs = copy.stubs().text()
    in_folder(path, {"01_plain-Copy1.ipynb": copy.solved().text(), "01_plain.ipynb": stubs})


@case(
    "partial",
    case.without("mean"),
    says="01_plain (1).ipynb was not graded: it has answers to 3 and was saved later. If it is",
    notes="01_plain.ipynb was graded and has answers to 2 of 3 exercises. 01_plain (1).ipynb",
    mean="missing",
)
def went_on_in_a_copy(copy: Copy, path: Path) -> None:
    part = copy.stub("mean").text()
    in_folder(path, {"01_plain.ipynb": part, "01_plain (1).ipynb": copy.solved().text()})


@case("passed", case.all, says_nothing=True)
def a_copy_with_less(copy: Copy, path: Path) -> None:
    whole = copy.text()
    in_folder(path, {"01_plain-Copy1.ipynb": copy.stub("mean").text(), "01_plain.ipynb": whole})


@case("passed", case.all, says_nothing=True)
def the_same_twice(copy: Copy, path: Path) -> None:
    in_folder(path, {"01_plain.ipynb": copy.text(), "01_plain-Copy1.ipynb": copy.text()})


@case("passed", case.all, says="Copy1.ipynb was not, and cannot be read: the file is empty")
def an_empty_copy(copy: Copy, path: Path) -> None:
    in_folder(path, {"01_plain.ipynb": copy.text(), "01_plain-Copy1.ipynb": ""})


@case(
    "partial",
    case.without("mean"),
    says="imports `helpers_of_mine`, and helpers_of_mine.py was not graded: only the notebook",
    notes="Copy its code into a cell of the notebook.",
    mean="error",
)
def module_beside_the_notebook(copy: Copy, path: Path) -> None:
    copy.answer("mean", "from helpers_of_mine import mean")
    code = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"
    in_folder(path, {"01_plain.ipynb": copy.text(), "helpers_of_mine.py": code})


@case(
    "partial",
    case.without("mean"),
    says="Your notebook uses numbers.txt, which was not there when it was graded",
    mean="failed",
)
def data_beside_the_notebook(copy: Copy, path: Path) -> None:
    copy.insert("data = open('numbers.txt').read()", before="exercise-mean")
    copy.answer("mean", "def mean(numbers):\n    return data")
    in_folder(path, {"01_plain.ipynb": copy.text(), "numbers.txt": "1", "unused.txt": "2"})


@case(
    "partial",
    case.without("mean"),
    says="Your notebook uses helpers_of_mine.py, which was not there when it was graded",
    mean="missing",
)
def script_beside_the_notebook(copy: Copy, path: Path) -> None:
    copy.insert("%run helpers_of_mine.py", before="exercise-mean").stub("mean")
    in_folder(path, {"01_plain.ipynb": copy.text(), "helpers_of_mine.py": "x = 1"})


@case("missing", 0, says="holds nothing")
def empty_folder(copy: Copy, path: Path) -> None:
    path.with_suffix("").mkdir()


@case("passed", case.all)
def as_handed_out(copy: Copy, path: Path) -> None:
    """The lab is in the folder where the handout has it."""
    folder = path.with_suffix("") / "labs"
    folder.mkdir(parents=True)
    (folder / "01_plain.ipynb").write_text(copy.text())
    (folder / "START.md").touch()


@case("grader_error", None, notes="no notebook was handed in, only answer.py")
def something_else(copy: Copy, path: Path) -> None:
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "answer.py").write_text("def add(a, b): return a + b")
