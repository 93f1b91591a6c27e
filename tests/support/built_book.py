"""The built book: each edition is built once for all tests of a run."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from parlab_staff.book import build
from parlab_staff.book.source import EDITIONS


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each edition. They are built at the same time: a build uses one core."""
    root = tmp_path_factory.mktemp("book")
    with ThreadPoolExecutor() as pool:
        codes = pool.map(lambda edition: build(edition, root / edition), EDITIONS)
    failed = [edition for edition, code in zip(EDITIONS, codes, strict=True) if code != 0]
    assert not failed, f"does not build: {', '.join(failed)}; see its warnings"
    return {edition: root / edition for edition in EDITIONS}


@pytest.fixture(scope="session")
def full_book(books: dict[str, Path]) -> Path:
    """The folder of the full edition."""
    return books["full"]


@pytest.fixture(scope="session")
def student_book(books: dict[str, Path]) -> Path:
    """The folder of the edition without solutions."""
    return books["student"]


def pages(book: Path) -> list[str]:
    """Return every page of a built book, as its path from the book's folder."""
    found = (page.relative_to(book).as_posix() for page in book.rglob("*.html"))
    return sorted(page for page in found if not page.startswith("_static/"))
