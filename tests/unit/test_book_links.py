"""Links between the book's pages lead to pages and headings, and pages show what they compute.

This needs no build of the book.
"""

import re
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT

PAGES = sorted((ROOT / "book").glob("*.md"))
LINK = re.compile(r"\]\(([\w./-]+\.(?:md|ipynb))(?:#([\w-]+))?\)")
# The text of a page shows numbers that its code makes available.
MADE = re.compile(r"\bput\(\s*\"(\w+)\"")
SHOWN = re.compile(r"\{glue:text\}`(\w+)`")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings in links, as MyST makes them."""
    titles = re.findall(
        r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_links_to_other_pages_lead_somewhere(page: Path) -> None:
    for target, heading in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        assert (page.parent / target).exists(), target
        if heading:
            assert heading in anchors(page.parent / target), f"{target}#{heading}"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_numbers_that_a_page_computes_are_not_typed_into_its_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not set(MADE.findall(text)) - set(SHOWN.findall(text))


def test_links_are_found() -> None:
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 50
