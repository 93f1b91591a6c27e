"""Prepares the sources of an edition of the book: a copy of its pages and notebooks."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from parlab_staff.book.notebooks import lab_page, solutions_page

EDITIONS = ("full", "student")
# Lines of a page between these two are only in the full edition (a MyST comment starts with %).
BEGIN_FULL = "% BEGIN FULL EDITION"
END_FULL = "% END FULL EDITION"

_SOLUTIONS = "solutions/"
# Pages only in the full edition; the one for instructors shows a hidden check.
_FULL_ONLY = (_SOLUTIONS, "book/instructors")


def stage(root: Path, into: Path, edition: str) -> None:
    """Copy the sources of an edition from the checkout `root` into the new folder `into`."""
    into.mkdir(parents=True)
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    if edition == "student":
        toc = _for_students(toc)
    shutil.copytree(root / "book", into / "book")
    for page in (into / "book").rglob("*.md"):
        if edition == "student" and _is_full_only(f"book/{page.stem}"):
            page.unlink()
        else:
            page.write_text(of_edition(page, edition), encoding="utf-8")
    for page in _pages(toc):
        if not page.startswith("book/"):
            _stage_notebook(root, into, page)
    shutil.copy(root / "_config.yml", into)
    (into / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")


def _pages(toc: dict[str, Any]) -> list[str]:
    chapters = [chapter for part in toc.get("parts", []) for chapter in part["chapters"]]
    return [toc["root"], *(chapter["file"] for chapter in chapters)]


def _for_students(toc: dict[str, Any]) -> dict[str, Any]:
    parts = []
    for part in toc["parts"]:
        if kept := [page for page in part["chapters"] if not _is_full_only(page["file"])]:
            parts.append(part | {"chapters": kept})
    return toc | {"parts": parts}


def _is_full_only(page: str) -> bool:
    return page.startswith(_FULL_ONLY)


def of_edition(page: Path, edition: str) -> str:
    """Return the text of a page in an edition. Raises ValueError for a mark without its pair."""
    kept, full_only = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if line.strip() in (BEGIN_FULL, END_FULL):
            if full_only == (line.strip() == BEGIN_FULL):
                raise ValueError(f"{page.name}:{number}: {line.strip()!r} has no other half")
            full_only = not full_only
        elif edition == "full" or not full_only:
            kept.append(line)
    if full_only:
        raise ValueError(f"{page.name}: {BEGIN_FULL!r} without {END_FULL!r}")
    return "".join(kept)


def _stage_notebook(root: Path, into: Path, page: str) -> None:
    source = root / f"{page}.ipynb"
    if not source.exists():
        raise ValueError(f"_toc.yml names {page}, and there is no {page}.ipynb: `make notebooks`")
    as_page = solutions_page if page.startswith(_SOLUTIONS) else lab_page
    notebook = as_page(json.loads(source.read_text(encoding="utf-8")), source.stem)
    target = into / f"{page}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
