"""Makes the addresses of a page valid in the document that contains all pages."""

import posixpath
import re
from pathlib import Path

from bs4 import BeautifulSoup, Tag

_ELSEWHERE = re.compile(r"[a-z]+:")  # https:, mailto:, data:
_REFERENCES = ("for", "aria-labelledby", "aria-describedby")


def key_of(page: str) -> str:
    """Return the id of a page in the document: book-01_mpi for book/01_mpi."""
    return page.replace("/", "-")


def localize(content: Tag, page: str, built: Path) -> None:
    """Put the page's key before each id, and change links and pictures to match.

    A link to a page of the book then leads to its key, or to an id on that page. Pictures are read
    from the folder `built`.
    """
    key = key_of(page)
    for element in content.select("[id]"):
        element["id"] = f"{key}--{element['id']}"
    for name in _REFERENCES:
        for element in content.select(f"[{name}]"):
            element[name] = f"{key}--{element[name]}"
    for link in content.select("a[href]"):
        link["href"] = _address(str(link["href"]), page)
    for picture in content.select("img[src]"):
        picture["src"] = (built / page).parent.joinpath(str(picture["src"])).resolve().as_uri()


def _address(address: str, page: str) -> str:
    if _ELSEWHERE.match(address):
        return address
    path, _, name = address.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    key = key_of(target.removesuffix(".html"))
    return f"#{key}--{name}" if name else f"#{key}"


def drop_dead_links(document: BeautifulSoup) -> None:
    """Turn links to pages that are not in the document, such as labs, into plain text.

    If only the id within a page is missing, the link leads to the page.
    """
    ids = {str(element["id"]) for element in document.select("[id]")}
    for link in document.select('a[href^="#"]'):
        target = str(link["href"])[1:]
        page = target.partition("--")[0]
        if target not in ids and page in ids:
            link["href"] = f"#{page}"
        elif target not in ids:
            link.unwrap()
