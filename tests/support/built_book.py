"""The built book: each edition is built once for all tests of a run."""

from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.book import build
from parlab_staff.book.source import EDITIONS, stage


@pytest.fixture(scope="session")
def full_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the full edition."""
    return _built("full", tmp_path_factory)


@pytest.fixture(scope="session")
def student_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the edition without solutions."""
    return _built("student", tmp_path_factory)


def _built(edition: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book") / edition
    assert build(edition, folder) == 0, f"the {edition} edition has warnings: see above"
    return folder


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sources of each edition. A build renders only these."""
    root = tmp_path_factory.mktemp("sources")
    for edition in EDITIONS:
        stage(ROOT, root / edition, edition)
    return {edition: root / edition for edition in EDITIONS}


def pages(book: Path) -> list[str]:
    """Return every page of a built book, as its path from the book's folder.

    The pages of the playground are left out, because they start ranks and have their own tests.
    """
    found = (page.relative_to(book).as_posix() for page in book.rglob("*.html"))
    return sorted(page for page in found if not page.startswith(("_static/", "play/")))
