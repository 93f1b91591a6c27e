"""Prepares the sources of an edition of the book: a copy of its pages and notebooks."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from parlab_staff.book.notebooks import lab_page, solutions_page
from parlab_staff.book.site import Site, read_site, with_site

EDITIONS = ("full", "student")
# Lines of a page between these two are only in the full edition (a MyST comment starts with %).
BEGIN_FULL = "% BEGIN FULL EDITION"
END_FULL = "% END FULL EDITION"

_SOLUTIONS = "solutions/"
# Pages only in the full edition. The page for instructors shows a hidden check.
_FULL_ONLY = (_SOLUTIONS, "book/instructors")


def stage(root: Path, into: Path, edition: str) -> None:
    """Copy the sources of an edition from the checkout `root` into the new folder `into`."""
    site = read_site(root)
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    if edition == "student":
        toc, site = _for_students(toc), site.for_students()
    into.mkdir(parents=True)
    shutil.copytree(root / "book", into / "book")
    for page in (into / "book").rglob("*.md"):
        if edition == "student" and _is_full_only(f"book/{page.stem}"):
            page.unlink()
        else:
            page.write_text(of_edition(page, edition), encoding="utf-8")
    for page in pages_of(toc):
        if not page.startswith("book/"):
            _stage_notebook(root, into, page, site)
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    _write_yaml(into / "_config.yml", with_site(config, site))
    _write_yaml(into / "_toc.yml", toc)


def _write_yaml(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")


def pages_of(toc: dict[str, Any]) -> list[str]:
    """Return the pages that `_toc.yml` names, in order, without their suffix."""
    chapters = [chapter for part in toc.get("parts", []) for chapter in part["chapters"]]
    named = [page for chapter in chapters for page in (chapter, *chapter.get("sections", []))]
    return [toc["root"], *(page["file"] for page in named)]


def _for_students(toc: dict[str, Any]) -> dict[str, Any]:
    parts = [part | {"chapters": _kept(part["chapters"])} for part in toc["parts"]]
    return toc | {"parts": [part for part in parts if part["chapters"]]}


def _kept(chapters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        chapter | ({"sections": _kept(chapter["sections"])} if "sections" in chapter else {})
        for chapter in chapters
        if not _is_full_only(chapter["file"])
    ]


def _is_full_only(page: str) -> bool:
    return page.startswith(_FULL_ONLY)


def of_edition(page: Path, edition: str) -> str:
    """Return the text of a page in an edition. Raises ValueError for an unpaired mark."""
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


def _stage_notebook(root: Path, into: Path, page: str, site: Site) -> None:
    source = root / f"{page}.ipynb"
    if not source.exists():
        raise ValueError(f"_toc.yml names {page}, and there is no {page}.ipynb: `make notebooks`")
    notebook = json.loads(source.read_text(encoding="utf-8"))
    if page.startswith(_SOLUTIONS):
        notebook = solutions_page(notebook, source.stem)
    else:
        notebook = lab_page(notebook, source.stem, site)
    target = into / f"{page}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
