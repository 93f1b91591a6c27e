"""The book as a reader gets it: each edition built once for all tests of a run."""

from pathlib import Path

import pytest

from parlab.book import build


@pytest.fixture(scope="session")
def full_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the full edition."""
    return _built("full", tmp_path_factory)


@pytest.fixture(scope="session")
def student_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the edition without solutions."""
    return _built("student", tmp_path_factory)


def _built(edition: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("book") / edition
    assert build(edition, output) == 0, f"the {edition} edition does not build: see its warnings"
    return output


def pages(book: Path) -> list[str]:
    """Every page of a built book, as its path from the book's folder."""
    found = (page.relative_to(book).as_posix() for page in book.rglob("*.html"))
    return sorted(page for page in found if not page.startswith("_static/"))
