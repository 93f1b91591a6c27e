"""Writes the handout of a lab, for `parlab release`.

The lab is derived from its source and not copied, so that experiments in `labs/` are left out. All
files are searched for solutions and hidden checks before the handout is complete.
"""

import json
import os
import shutil
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from parlab.runtime.paths import ROOT
from parlab_staff.book.source import of_edition
from parlab_staff.course.checkout import Course, select
from parlab_staff.course.lab import Lab
from parlab_staff.notebooks.build import differences
from parlab_staff.notebooks.make import OWN, lab_notebook, to_text
from parlab_staff.release.leaks import leaks

AS_THEY_ARE = (
    ".dockerignore", ".gitattributes", "LICENSE", "pyproject.toml",
    "requirements.in", "requirements.txt", "environment.yml", "compose.yaml",
)  # fmt: skip
MAKEFILE = "common.mk"  # the make targets for students


def write_handout(wanted: str, out: Path, root: Path = ROOT) -> Path:
    """Write the complete handout of a lab into the folder `out`, or nothing.

    Raises ValueError if there is no such lab, it is not up to date, or `out` is not empty.
    """
    course = Course(root)
    (lab,) = select(course.read(), [wanted])
    if outdated := differences(course, lab):
        raise ValueError(f"lab {lab.name} is not released: {'; '.join(outdated)}")
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder: name another one, or empty it")
    existing = out.is_dir()  # perhaps a link, a mounted disk, or the current folder: fill it
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".release-", dir=out if existing else out.parent))
    except OSError as error:
        raise ValueError(f"{out} cannot be written to: {error.strerror}") from None
    try:
        _write(course, lab, work)
        if found := leaks(lab, work):
            raise ValueError(f"lab {lab.name} is not released: {'; '.join(found)}")
        if existing:
            for path in list(work.iterdir()):
                path.replace(out / path.name)
        else:
            work.chmod(0o755)
            work.replace(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _write(course: Course, lab: Lab, out: Path) -> None:
    root, notebook = course.root, lab_notebook(lab)
    _copy_tree(root / "parlab", out / "parlab")
    for name in AS_THEY_ARE:
        shutil.copy(root / name, out)
    shutil.copy(root / MAKEFILE, out / "Makefile")
    _copy_tree(root / "containers", out / "containers")
    for folder in ("labs", "book"):
        (out / folder).mkdir()
    (out / "labs" / f"{lab.name}.ipynb").write_text(to_text(notebook), encoding="utf-8")
    chapter = root / "book" / f"{lab.name}.md"  # the lab links to it
    for page in (chapter, root / "book" / "notation.md"):  # the chapter links to the notation
        if page.exists():
            (out / "book" / page.name).write_text(of_edition(page, "student"), encoding="utf-8")
    words = {
        "lab": lab.name,
        "title": _title(lab),
        "has_chapter": chapter.exists(),
        "how_a_lab_works": _section(course.labs / "START.md", "How a lab works"),
    }
    for template, path in (("README.md", "README.md"), ("START.md", "labs/START.md")):
        (out / path).write_text(
            _templates().get_template(f"{template}.j2").render(words), encoding="utf-8"
        )
    stamp = {
        "lab": lab.name,
        "derived": notebook.metadata[OWN]["derived"],
        "parlab": version("parlab"),
        "date": date.today().isoformat(),
    }
    (out / "release.json").write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("parlab_staff.release"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder without hidden files and compiled modules."""
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        if path.is_file() and not hidden:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / inside)


def _section(page: Path, heading: str) -> str:
    """Return a section of a Markdown page, with its heading."""
    _, _, text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    return f"## {heading}\n{text.partition(chr(10) + '## ')[0]}"


def _title(lab: Lab) -> str:
    """Return the heading of the lab's first cell."""
    return lab.cells[0].source.partition("\n")[0].removeprefix("# ")
