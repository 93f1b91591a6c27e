"""`parlab release`: what an instructor hands out: one lab, and all that it needs to run.

The lab is derived from its source and not copied, so that what was tried out in `labs/` stays
here; and all that is written is searched for solutions and hidden checks before it is handed over.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from parlab.authoring.course import Course, select
from parlab.authoring.deriving import differences
from parlab.authoring.notebooks import OWN, lab_notebook, to_text
from parlab.authoring.regions import find_regions
from parlab.authoring.source import Lab
from parlab.book.source import of_edition
from parlab.venv import ROOT

# What of the package only those need who make the course, or grade.
NOT_HANDED_OUT = {"authoring", "book", "grading"}
KINDS = {".py", ".csv", ".npz", ".json", ".md"}
AS_THEY_ARE = ("LICENSE", "requirements.in", "requirements.txt", "environment.yml")
TARGETS = {"help", "setup", "lab", "doctor", "clean"}

_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)
_ROW_OF_A_LAB = re.compile(r"^\| \[.+?\]\((.+?)\.ipynb\)")
_README = """\
# {title}

You need Linux, Python 3.11 to 3.14 and make. You need no GPU.

    make lab

The first call installs everything into `.venv`, in a minute or two; later calls start at once.
JupyterLab opens in your browser: choose `{lab}.ipynb`. With conda instead of make: `conda env
create -f environment.yml && conda activate parlab && parlab lab`.

    make doctor

says what your machine has, and what follows for the lab.

## Hand in

Save the notebook, and hand in this one file: `labs/{lab}.ipynb`.

- Your answers are taken from the cells of the exercises. Cells that you add are run as well.
- The checks are run again, as they were handed out, with some that you do not see. What a check
  tells you on your machine is what it will say there.
- It runs in an empty folder without the internet: other files of yours are not there.

This copy comes without solutions, so `use_reference` puts none in place. `release.json` says which
version of the lab you have.
"""


def release(wanted: str, out: Path, root: Path = ROOT) -> Path:
    """Write what students of a lab get into the folder `out`: all of it, or nothing.

    Raises ValueError where there is no such lab, it is not up to date, or `out` is not empty.
    """
    course = Course(root)
    (lab,) = select(course.read(), [wanted])
    if outdated := differences(course, lab):
        raise ValueError(f"lab {lab.name} is not released: {'; '.join(outdated)}")
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there and not an empty folder: name another one, or empty it")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".release-", dir=out.parent))
    try:
        _write(course, lab, work)
        if found := leaks(lab, work):
            raise ValueError(f"lab {lab.name} is not released: {'; '.join(found)}")
        work.chmod(0o755)
        work.replace(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _write(course: Course, lab: Lab, out: Path) -> None:
    root, notebook = course.root, lab_notebook(lab)
    _write_package(root / "parlab", out / "parlab")
    for folder in ("labs", "book"):
        (out / folder).mkdir()
    (out / "labs" / f"{lab.name}.ipynb").write_text(to_text(notebook), encoding="utf-8")
    (out / "labs" / "START.md").write_text(_start_page(course.labs / "START.md", lab))
    chapter = root / "book" / f"{lab.name}.md"  # the lab links to it
    if chapter.exists():
        (out / "book" / chapter.name).write_text(of_edition(chapter, "student"))
    for name in AS_THEY_ARE:
        shutil.copy(root / name, out)
    (out / "Makefile").write_text(_makefile((root / "Makefile").read_text()))
    # Jupyter Book would look for what draws its figures.
    project = _without((root / "pyproject.toml").read_text(), lambda block: "parlab.book" in block)
    (out / "pyproject.toml").write_text(project)
    (out / "README.md").write_text(_README.format(title=_title(lab), lab=lab.name))
    stamp = {
        "lab": lab.name,
        "derived": notebook.metadata[OWN]["derived"],
        "parlab": version("parlab"),
        "date": date.today().isoformat(),
    }
    (out / "release.json").write_text(json.dumps(stamp, indent=1) + "\n")


def _write_package(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        if path.suffix in KINDS and inside.parts[0] not in NOT_HANDED_OUT and not hidden:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / inside)


def _start_page(path: Path, lab: Lab) -> str:
    """The list of labs with this one alone, and without the book that is not there."""

    def unwanted(line: str) -> bool:
        row = _ROW_OF_A_LAB.match(line)
        return "make book" in line or (row is not None and row[1] != lab.name)

    lines = path.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not unwanted(line))


def _makefile(text: str) -> str:
    """The targets for which a student has the files."""

    def unwanted(block: str) -> bool:
        target = _TARGET.search(block)
        return target[1] not in TARGETS if target else "make test" in block

    names = [name for name in _TARGET.findall(text) if name in TARGETS]
    phony = f".PHONY: {' '.join(names)}"
    return re.sub(r"^\.PHONY: .*$", phony, _without(text, unwanted), flags=re.MULTILINE)


def _without(text: str, unwanted: Callable[[str], bool]) -> str:
    """The text without some of its blocks, which blank lines part."""
    blocks = text.rstrip("\n").split("\n\n")
    return "\n\n".join(block for block in blocks if not unwanted(block)) + "\n"


def _title(lab: Lab) -> str:
    """The heading of the lab's first cell."""
    return lab.cells[0].source.partition("\n")[0].removeprefix("# ")


def leaks(lab: Lab, folder: Path) -> list[str]:
    """Which files of `folder` hold what a student must not see, a line each."""
    secret = secrets(lab)
    return [
        f"{path.relative_to(folder)} holds {what}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".npz"
        for what, text in secret.items()
        if text in _said(path)
    ]


def secrets(lab: Lab) -> dict[str, str]:
    """Texts that only a solution or a hidden check has, in words parted by one space.

    A solution of one line may well stand elsewhere: those of more lines tell.
    """
    found = {}
    for cell in lab.cells:
        where = f"of {lab.name}, line {cell.line}"
        lines = cell.source.split("\n")
        for number, region in enumerate(find_regions(lines)[0], 1):
            inner = [line for line in lines[region.begin + 1 : region.end] if line.strip()]
            if len(inner) > 1:
                found[f"solution {number} {where}"] = _words("\n".join(inner))
        if cell.role in ("hidden-check", "solution"):
            own = [line for line in lines if not line.startswith("%%")]
            found[f"the {cell.role} {where}"] = _words("\n".join(own))
    return found


def _said(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return _words(text)


def _words(text: str) -> str:
    return " ".join(text.split())
