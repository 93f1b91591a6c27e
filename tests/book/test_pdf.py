"""The printed book: numbers of pages, bookmarks, answers, and tags."""

import base64
import io
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from bs4 import BeautifulSoup
from PIL import Image
from pypdf import PdfReader
from pypdf.generic import Destination, DictionaryObject

from parlab.setup.doctor.programs import find_chromium
from parlab_staff.pdf import pages_to_print, print_book, print_pages
from parlab_staff.pdf.addresses import drop_dead_links, localize
from parlab_staff.pdf.chromium import print_document
from parlab_staff.pdf.tags import destinations, with_artifacts
from parlab_staff.pdf.unfold import unfold
from tests.support.tagged_pdf import faults

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]
# A chapter with hatches, and few figures.
SOME = ["book/index", "book/04_tensor_parallel", "book/glossary", "solutions/01_mpi"]
CHAPTER = "4 · Tensor parallelism"


@pytest.fixture(scope="module")
def some_pages(full_book: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PDF of the introduction, one chapter, the glossary, and one page of solutions."""
    output = tmp_path_factory.mktemp("pdf") / "some.pdf"
    print_pages(full_book, SOME, output)
    return output


def words(pdf: Path, first: int = 1, last: int | None = None) -> str:
    """Return the text of some pages of a PDF on one line."""
    pages = PdfReader(pdf).pages[first - 1 : last]
    return " ".join(" ".join(page.extract_text() for page in pages).split())


def bookmarks(pdf: Path) -> dict[str, int]:
    """Return the page of each bookmark of the first level."""
    reader = PdfReader(pdf)
    top = [entry for entry in reader.outline if isinstance(entry, Destination)]
    return {str(entry.title): reader.get_destination_page_number(entry) + 1 for entry in top}


@pytest.mark.nightly
@pytest.mark.needs("chromium")
def test_the_contents_name_the_page_of_each_chapter(some_pages: Path) -> None:
    pages = bookmarks(some_pages)
    assert list(pages) == [
        "Contents", "Train large models in parallel", CHAPTER, "Glossary", "Reference solutions",
    ]  # fmt: skip
    contents = words(some_pages, pages["Contents"], pages["Train large models in parallel"] - 1)
    for title in list(pages)[1:]:
        assert f"{title} {pages[title]} " in f"{contents} ", title
        # The running header.
        assert title in words(some_pages, pages[title], pages[title])[: len(title) + 10]
    assert "000" not in contents


@pytest.mark.needs("chromium")
def test_a_section_with_two_labels_is_on_the_page_of_its_heading(tmp_path: Path) -> None:
    # On some of these pages, the heading has room, but not together with lines of the paragraph.
    heights = range(222, 250, 2)
    (tmp_path / "book").mkdir()
    for height in heights:
        (tmp_path / "book" / f"{height}.html").write_text(
            "<head><script>window.MathJax = {startup: {document: {math: []}}}</script></head>"
            f'<article class="bd-article"><h1>Page</h1><div style="height: {height}mm"></div>'
            f'<section id="balance"><span id="id1"></span><h2>Balance {height}</h2><p>text</p>'
            "</section></article>"
        )
    printed = tmp_path / "pages.pdf"
    print_pages(tmp_path, [f"book/{height}" for height in heights], printed)
    for height in heights:
        number = destinations(printed)[f"book-{height}--balance"]
        assert words(printed, number, number).endswith(f"Balance {height} text")


@pytest.mark.needs("chromium")
def test_two_small_pages_have_page_numbers_answers_and_complete_tags(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    for name in ("one", "two"):
        (tmp_path / "book" / f"{name}.html").write_text(
            "<head><script>window.MathJax = {startup: {document: {math: []}}}</script></head>"
            f'<article class="bd-article"><section id="{name}"><h1>Page {name}</h1>'
            "<table><thead><tr><th></th><th>b</th></tr></thead><tr><td>1</td><td></td></tr></table>"
            '<section id="questions"><h2>Questions</h2><details><summary><span class='
            '"sd-summary-text">Why?</span></summary><div class="sd-summary-content">Because.</div>'
            '</details></section><div style="height: 400mm"></div></section></article>'
        )
    printed = tmp_path / "pages.pdf"
    print_pages(tmp_path, ["book/one", "book/two"], printed)
    assert bookmarks(printed) == {"Contents": 2, "Page one": 3, "Page two": 5}
    contents = words(printed, 2, 2)
    assert "Page one 3 Questions 3 Answers 4 Page two 5 Questions 5 Answers 6" in contents
    assert words(printed, 3, 3).endswith("Why? Answer on page 4")
    assert words(printed, 6, 6).endswith("Answers 1. Because.")
    assert faults(printed) == []


@pytest.mark.nightly
@pytest.mark.needs("chromium")
def test_answers_are_at_the_end_of_their_chapter(some_pages: Path) -> None:
    pages, places = bookmarks(some_pages), destinations(some_pages)
    number = places["book-04_tensor_parallel--answer-1"]
    end_of_chapter = words(some_pages, number - 4, pages["Glossary"] - 1)
    questions, _, answers = end_of_chapter.partition("Answers")
    assert re.search(rf"\? Answer on page {number}\b", questions)
    assert len(answers.split()) > 200
    assert pages[CHAPTER] < number < pages["Glossary"]


@pytest.mark.nightly
@pytest.mark.needs("chromium")
def test_the_tags_are_complete(some_pages: Path) -> None:
    assert faults(some_pages) == []


def images(pdf: Path) -> list[int]:
    """Return the numbers of all images in a PDF, including images in patterns."""
    reader = PdfReader(pdf)
    numbers = range(1, int(reader.trailer["/Size"]))
    objects = {number: reader.get_object(number) for number in numbers}
    return [
        number
        for number, found in objects.items()
        if isinstance(found, DictionaryObject) and found.get("/Subtype") == "/Image"
    ]


@pytest.mark.nightly
@pytest.mark.needs("chromium")
def test_figures_are_printed_as_lines(some_pages: Path) -> None:
    assert images(some_pages) == []


@pytest.mark.needs("chromium")
def test_a_hatch_is_printed_as_lines(tmp_path: Path) -> None:
    page, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(
        "<title>Page</title><script>var MathJax = {startup: {document: {math: []}}}</script>"
        "<svg width=300 height=200><defs><pattern id=p patternUnits=userSpaceOnUse "
        "width=8 height=8>"
        "<rect width=9 height=9 style='fill: #fc0'></rect><path d='M-4 4L4 -4M0 8L8 0M4 12L12 4' "
        "style='stroke: black'></path></pattern></defs>"
        "<rect x=20 y=20 width=200 height=100 style='fill: url(#p)'></rect></svg>"
    )
    browser = find_chromium()
    assert browser is not None
    print_document(page, printed, browser)
    assert images(printed) == []
    drawn = PdfReader(printed).pages[0].get_contents().get_data()
    # A pattern has 8 by 8 pixels, so at least 25 by 12 copies of its first line touch the area.
    assert len(re.findall(rb"^S$", drawn, re.MULTILINE)) >= 25 * 12


@pytest.mark.needs("chromium")
def test_a_heatmap_is_printed_as_areas(tmp_path: Path) -> None:
    bitmap = io.BytesIO()
    Image.fromarray(np.array([[0, 0, 255], [0, 0, 9], [7, 8, 9]], np.uint8)).save(bitmap, "png")
    address = f"data:image/png;base64,{base64.b64encode(bitmap.getvalue()).decode()}"
    page, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(
        "<title>Page</title><script>var MathJax = {startup: {document: {math: []}}}</script>"
        "<svg><g class=heatmaplayer><image x=9 y=9 width=90 height=60 preserveAspectRatio=none "
        f"href='{address}'></image></g></svg>"
    )
    browser = find_chromium()
    assert browser is not None
    print_document(page, printed, browser)
    (content,) = PdfReader(printed).pages
    assert list(content.images) == []
    # The two by two equal cells are one area.
    assert content.get_contents().get_data().count(b" re\nf") == 5


@pytest.mark.needs("chromium")
def test_formulas_have_no_outline(tmp_path: Path) -> None:
    style = files("parlab_staff.pdf").joinpath("print.css").read_text(encoding="utf-8")
    page, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(
        "<title>Page</title><script>var MathJax = {startup: {document: {math: []}}}</script>"
        # As MathJax writes a glyph.
        f"<style>mjx-container path[data-c] {{ stroke-width: 3; }} {style}</style><mjx-container>"
        "<svg><g stroke=black fill=black><path data-c=4E d='M0 0L90 90L0 90Z'></path></g></svg>"
    )
    browser = find_chromium()
    assert browser is not None
    print_document(page, printed, browser)
    drawn = PdfReader(printed).pages[0].get_contents().get_data()
    assert re.findall(rb"^(?:f|S|B)\*?$", drawn, re.MULTILINE) == [b"f"]


@pytest.mark.needs("chromium")
def test_a_print_without_completed_tags_has_faults(tmp_path: Path) -> None:
    page, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(
        "<title>Page</title><script>var MathJax = {startup: {document: {math: []}}}</script>"
        "<h1>One</h1><h3>Three</h3><ul><li>item</ul><a href='https://example.org'>link</a>"
        "<svg role=img width=9 height=9><circle r=9 /></svg>"
    )
    browser = find_chromium()
    assert browser is not None
    print_document(page, printed, browser)
    found = " ".join(faults(printed))
    for fault in ("ID-PART", "LINK-CONTENTS", "HEADING-NESTING", "LI-KIDS", "FIGURE-ALTERNATIVE"):
        assert fault in found


@pytest.mark.nightly
@pytest.mark.needs("chromium")
@pytest.mark.parametrize("edition", ["full", "student"])
def test_an_edition_is_printed_completely(
    edition: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    built = request.getfixturevalue(f"{edition}_book")
    pdf = print_book(edition, built, tmp_path / "book.pdf")
    assert faults(pdf) == []
    pages = pages_to_print(built, edition)
    titles = bookmarks(pdf)
    chapters = [page for page in pages if page.startswith("book/")]
    assert len(titles) == 1 + len(chapters) + (edition == "full")
    assert ("Reference solutions" in titles) == (edition == "full")
    assert {"book/index", "book/01_mpi", "book/glossary"} <= set(pages)


def test_questions_and_answers_part() -> None:
    page = BeautifulSoup(
        '<article><section><h1>T</h1><section id="questions"><details><summary>'
        '<span class="sd-summary-text">Why?</span></summary>'
        '<div class="sd-summary-content">Because.'
        '</div></details></section><section id="references">R</section></section></article>',
        "html.parser",
    )
    assert page.article is not None
    unfold(page.article)
    assert " ".join(page.article.stripped_strings) == "T Why? Answer R Answers Because."


def test_links_lead_to_pages_in_the_document_only(tmp_path: Path) -> None:
    page = BeautifulSoup(
        '<article><p id="a"></p><a href="#a">here</a><a href="glossary.html#term">term</a>'
        '<a href="../labs/01_mpi.html">lab</a><a href="https://example.org">web</a></article>',
        "html.parser",
    )
    assert page.article is not None
    localize(page.article, "book/01_mpi", tmp_path)
    page.append(BeautifulSoup('<section id="book-glossary"></section>', "html.parser"))
    drop_dead_links(page)
    found = {link.text: link["href"] for link in page.select("a")}
    assert found == {
        "here": "#book-01_mpi--a",
        "term": "#book-glossary",
        "web": "https://example.org",
    }
    assert "lab" in page.text


def test_content_without_a_tag_becomes_decoration() -> None:
    content = (
        b"line\n/P <</MCID 0 >>BDC\n/Span<</ActualText (fi) >> BDC\ntext\nEMC\nEMC\n/X1 Do\n/X2 Do"
    )
    marked = with_artifacts(content, {"/X2"}).split(b"\n")
    assert [line for line in marked if line] == [
        b"/Artifact BMC", b"line", b"EMC", b"/P <</MCID 0 >>BDC", b"/Span<</ActualText (fi) >> BDC",
        b"text", b"EMC", b"EMC", b"/Artifact BMC", b"/X1 Do", b"EMC", b"/X2 Do", b"/Artifact BMC",
        b"EMC",
    ]  # fmt: skip


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="run `make book` first"):
        pages_to_print(tmp_path, "full")
    with pytest.raises(ValueError, match="full, student"):
        pages_to_print(tmp_path, "teacher")
    for page in ("book/index.html", "solutions/01_mpi.html"):
        (tmp_path / page).parent.mkdir()
        (tmp_path / page).touch()
    with pytest.raises(ValueError, match=r"01_mpi\.html: run `make book` again"):
        pages_to_print(tmp_path, "full")
    with pytest.raises(ValueError, match="run `make book EDITION=student` first"):
        pages_to_print(tmp_path, "student")
    with pytest.raises(ValueError, match="--output"):
        print_pages(tmp_path, [], tmp_path / "book" / "index.html" / "book.pdf")
    with pytest.raises(ValueError, match="is a folder"):
        print_pages(tmp_path, [], tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match="install chromium"):
        print_pages(tmp_path, [], tmp_path / "book.pdf")
