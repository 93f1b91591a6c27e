"""Joins the pages of the built book into one HTML document for paper.

It must be one document, because PDF files that are joined afterwards lose their tags and language.
"""

import datetime
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from bs4 import BeautifulSoup, Tag

from parlab_staff.pdf.addresses import drop_dead_links, key_of, localize
from parlab_staff.pdf.pictures import inline
from parlab_staff.pdf.unfold import reference_solutions, unfold

INTRODUCTION = "book/index"
APPENDIX = "solutions"  # the key of the reference solutions
TITLE = "parlab: Train large models in parallel"
# The scripts that draw formulas and figures. Other scripts of a page add buttons and a search.
_DRAWS = ("window.MathJax", "mathjax/", "plotly", "figures.js")
_ABOUT = (
    "This is the printed form of a website. A figure with a slider shows the position in which the "
    "slider starts. The answers to a chapter's questions are at the end of the chapter. The labs "
    "are notebooks in which you write and run code, so they are not printed. The links to the "
    "playground are not printed either."
)


@dataclass(frozen=True)
class Chapter:
    """A part of the printed book with its own running header.

    `key` is the id of its element and the name of its page style.
    """

    key: str
    title: str
    content: Tag


def combined(built: Path, pages: list[str]) -> str:
    """Return the HTML of the whole book.

    `built` is the folder of the built book, and `pages` are the pages to print, in order, such as
    "book/01_mpi". Only the code of pages of solutions is printed, as an appendix. Links between
    the pages lead to their places in the document.
    """
    chapters, solutions = [], []
    for page in pages:
        article = _article(built, page)
        if page.startswith("solutions/"):
            solutions.append(_solutions(article, page, built))
        else:
            chapters.append(_chapter(article, page, built))
    if solutions:
        chapters.append(_appendix(solutions))
    document = BeautifulSoup(_cover(chapters) + _contents(chapters), "html.parser")
    for chapter in chapters:
        content = chapter.content
        content.name, content.attrs = "section", {"class": "chapter", "id": chapter.key}
        content["style"] = f"page: {chapter.key}"
        document.append(content)
    drop_dead_links(document)
    head = _head(built, pages, chapters)
    return inline(
        '<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light">'
        f'<head><meta charset="utf-8"><title>{TITLE}</title>{head}</head>'
        f'<body><main class="bd-content bd-article">{document}</main></body></html>'
    )


def _article(built: Path, page: str) -> Tag:
    text = (built / f"{page}.html").read_text(encoding="utf-8")
    found = re.search(r"<article class=\"bd-article\">.*?</article>", text, re.DOTALL)
    assert found, page
    article = BeautifulSoup(found[0], "html.parser").article
    assert article is not None, page
    for element in article.select(".headerlink, button, script:not([type]), p:has(> .run-here)"):
        element.decompose()
    # Sphinx puts the id of a second label above the heading. If the heading moves to the next page,
    # the id would stay on the previous page, and the section would begin there.
    for label in article.select("section > span[id]:empty:has(+ :is(h1, h2, h3, h4))"):
        heading = label.find_next_sibling()
        assert isinstance(heading, Tag)
        heading.insert(0, label.extract())
    return article


def _chapter(article: Tag, page: str, built: Path) -> Chapter:
    unfold(article)
    localize(article, page, built)
    assert article.h1 is not None, page
    number = page.removeprefix("book/").partition("_")[0]
    if number.isdigit():
        article.h1.insert(0, f"{int(number)} · ")
    return Chapter(key_of(page), article.h1.get_text(), article)


def _solutions(article: Tag, page: str, built: Path) -> Tag:
    content = reference_solutions(page, article)
    localize(content, page, built)
    content["id"] = key_of(page)
    return content


def _appendix(solutions: list[Tag]) -> Chapter:
    title = "Reference solutions"
    content = BeautifulSoup(f"<section><h1>{title}</h1></section>", "html.parser").section
    assert content is not None
    content.extend(solutions)
    return Chapter(APPENDIX, title, content)


def _cover(chapters: list[Chapter]) -> str:
    """Return the cover, with the introduction's first picture."""
    pictures = [chapter.content.select_one("img.hero") for chapter in chapters]
    hero = next((picture.extract() for picture in pictures if picture), "")
    has_solutions = chapters[-1].key == APPENDIX
    edition = "Full edition, with the reference solutions" if has_solutions else "Student edition"
    name, _, subtitle = TITLE.partition(": ")
    return (
        f'<section class="cover"><p class="name">{name}</p><p class="subtitle">{subtitle}</p>{hero}'
        f'<p class="edition">{edition}<br>{datetime.date.today():%B %Y}</p>'
        f"<p>{_ABOUT}</p></section>"
    )


def _contents(chapters: list[Chapter]) -> str:
    """Return the table of contents. The style sheet adds the numbers of pages."""
    lines = []
    for chapter in chapters:
        sections = chapter.content.select("section[id]:has(> h2)")
        nested = "".join(_line(str(section["id"]), section.h2) for section in sections)
        nested = f"<ol>{nested}</ol>" if nested else ""
        lines.append(_line(chapter.key, chapter.content.h1, nested))
    return f'<nav class="book-contents"><h1>Contents</h1><ol>{"".join(lines)}</ol></nav>'


def _line(target: str, heading: Tag | None, nested: str = "") -> str:
    assert heading is not None, target
    text = f"<span>{heading.decode_contents()}</span>"
    return f'<li><a href="#{target}" data-page="000">{text}</a>{nested}</li>'


def _head(built: Path, pages: list[str], chapters: list[Chapter]) -> str:
    """Return the style sheets and the scripts that draw, from the heads of the pages."""
    found: dict[str, None] = {}
    headers = ""
    for page in pages:
        text = (built / f"{page}.html").read_text(encoding="utf-8")
        head = BeautifulSoup(text.partition("</head>")[0], "html.parser")
        for element in head.select("link[rel=stylesheet], script"):
            for name in ("href", "src"):
                if name in element.attrs:
                    path = str(element[name]).partition("?")[0]
                    element[name] = (built / page).parent.joinpath(path).resolve().as_uri()
            if element.name == "link" or any(script in str(element) for script in _DRAWS):
                found[str(element)] = None
    for chapter in chapters:
        title = json.dumps(chapter.title, ensure_ascii=False)
        headers += f"@page {chapter.key} {{ @top-right {{ content: {title} }} }}\n"
    style = files(__package__).joinpath("print.css").read_text(encoding="utf-8")
    return f"{''.join(found)}<style>{style}{headers}</style>"
