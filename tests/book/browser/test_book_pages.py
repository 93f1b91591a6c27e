"""Every page of the book in a browser: it has no errors or external requests, and is complete."""

import contextlib
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, TimeoutError, expect

from parlab.runtime.paths import ROOT, numbered
from tests.book.browser.reader import DESK, PHONE, reader
from tests.support.built_book import pages
from tests.support.nightly import cases

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]
LARGER = ("book/index.html", "book/04_tensor_parallel.html", "book/which_parallelism.html")
CHAPTERS = [f"book/{source.stem}.html" for source in numbered(ROOT / "book", ".md")]


# A table that scrolls has no column that is as narrow as the longest word of its sentences.
SENTENCES_HAVE_ROOM = """() => [...document.querySelectorAll(".bd-article table")].every((table) =>
    table.scrollWidth <= table.clientWidth + 1
    || [...table.querySelectorAll("td:not(:first-child)")].every((cell) =>
        cell.textContent.length <= 20 || cell.offsetWidth >= 12 * 16))"""


@pytest.fixture(params=["http", "file"])
def base(request: pytest.FixtureRequest, full_book: Path) -> str:
    """The address of the book: on a server, and as a folder on disk."""
    if request.param == "http":
        return request.getfixturevalue("served")
    return full_book.as_uri() + "/"


@pytest.mark.parametrize(
    ("base", "notebooks"),
    [("http", "01_mpi"), pytest.param("file", "", marks=pytest.mark.nightly)],
    indirect=["base"],
)
def test_pages_load_complete_and_fit_the_window(
    chromium: Browser, base: str, notebooks: str, full_book: Path
) -> None:
    """By day, one lab and its solutions: the other pages of notebooks have the same parts.

    By day, the window becomes larger on a few pages: there, the figures are drawn again.
    """
    with reader(chromium, base, PHONE) as window:
        too_wide = []
        for path in pages(full_book):
            if path.startswith(("labs/", "solutions/")) and notebooks not in path:
                continue
            page = window.open(path, PHONE)
            assert_drawn(page, path)
            if path in CHAPTERS:
                assert page.locator(".math mjx-container").count(), path
                assert page.locator("figure.plotly-figure.drawn .slider-container").count(), path
                page.wait_for_function(SENTENCES_HAVE_ROOM)
            # A window may become larger, such as when a phone is rotated.
            grows = not notebooks or path in LARGER or notebooks in path
            for viewport in (PHONE, DESK) if grows else (PHONE,):
                page.set_viewport_size(viewport)
                width = settled_width(page, viewport["width"])
                if width > viewport["width"]:
                    too_wide.append((path, viewport["width"], width))
            if grows:
                assert_drawn(page, path)
        assert window.problems == []
        assert too_wide == []


def settled_width(page: Page, wanted: int) -> int:
    """Return the page's width once it fits, or after 5 s: the theme's sidebars take some frames."""
    page.evaluate("() => new Promise(requestAnimationFrame)")
    with contextlib.suppress(TimeoutError):
        page.wait_for_function(
            "wanted => document.scrollingElement.scrollWidth <= wanted", arg=wanted, timeout=5000
        )
    return page.evaluate("() => document.scrollingElement.scrollWidth")


def assert_drawn(page: Page, path: str) -> None:
    """Assert that formulas have no errors, tables are tables, and each figure has its curves."""
    counts = page.evaluate(
        """() => ({
            formulas: document.querySelectorAll(".math").length,
            typeset: document.querySelectorAll(".math mjx-container svg").length,
            rawTables: [...document.querySelectorAll("p")].filter((p) =>
                /^\\s*\\|.*\\|/.test(p.textContent)).length,
            wrong: document.querySelectorAll("mjx-merror, [data-mjx-error]").length,
            broken: [...document.images].filter((i) => !i.complete || !i.naturalWidth).length,
            figures: [...document.querySelectorAll("figure.plotly-figure")].map((figure) =>
                figure.querySelectorAll(".trace, .hm, .bars .point").length),
        })"""
    )
    assert counts["typeset"] >= counts["formulas"], (path, counts)
    assert counts["rawTables"] == 0, (path, counts)
    assert counts["wrong"] == 0, (path, counts)
    assert counts["broken"] == 0, (path, counts)
    assert all(counts["figures"]), (path, counts)


def colours(page: Page) -> dict[str, str]:
    """Return the colors of the first figure's text and first trace, and of the page's text."""
    return page.evaluate(
        """() => {
            const figure = document.querySelector("figure.plotly-figure");
            const fill = (selector) => getComputedStyle(figure.querySelector(selector)).fill;
            return {
                axis: fill(".xtick text"),
                page: getComputedStyle(document.documentElement)
                    .getPropertyValue("--pst-color-text-base").trim(),
                theme: document.documentElement.dataset.theme,
                trace: figure.querySelector(".trace").innerHTML.match(/(stroke|fill): rgb[^;]*/)[0],
            };
        }"""
    )


def test_figures_follow_the_theme_and_keep_the_colours_that_mean_something(
    chromium: Browser, served: str
) -> None:
    with reader(chromium, served) as window:
        page = window.open("book/index.html")
        before = colours(page)
        assert before["theme"] == "light"
        button = page.locator("button.theme-switch-button:visible")
        for _ in range(3):  # the button cycles through light, dark, and the system's choice
            if page.evaluate("document.documentElement.dataset.theme") == "dark":
                break
            button.click()
        page.wait_for_function(
            """(old) => getComputedStyle(
                document.querySelector("figure.plotly-figure .xtick text")).fill !== old""",
            arg=before["axis"],
        )
        after = colours(page)
        assert after["theme"] == "dark"
        assert after["page"] != before["page"]
        assert after["trace"] == before["trace"]
        assert window.problems == []


def test_figures_are_drawn_for_a_reader_whose_system_is_dark(
    chromium: Browser, served: str
) -> None:
    with reader(chromium, served, theme="dark") as window:
        dark = colours(window.open("book/index.html"))
    with reader(chromium, served, theme="light") as window:
        light = colours(window.open("book/index.html"))
    assert (dark["theme"], light["theme"]) == ("dark", "light")
    assert dark["axis"] != light["axis"]


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_a_slider_changes_the_curves(
    chromium: Browser, served: str, viewport: dict[str, int]
) -> None:
    with reader(chromium, served, viewport) as window:
        page = window.open("book/index.html")
        figure = page.locator("figure.plotly-figure").first
        shown = "() => document.querySelector('figure.plotly-figure .bars').innerHTML"
        before = page.evaluate(shown)
        rail = figure.locator(".slider-rail-touch-rect")
        rail.scroll_into_view_if_needed()
        box = rail.bounding_box()
        assert box is not None
        rail.click(position={"x": box["width"] * 0.02, "y": box["height"] / 2})
        page.wait_for_function(f"(old) => ({shown})() !== old", arg=before)
        expect(figure.locator(".slider-label").first).to_contain_text("1")
        assert window.problems == []


def test_a_folded_solution_unfolds_and_its_output_is_always_visible(
    chromium: Browser, served: str
) -> None:
    with reader(chromium, served) as window:
        page = window.open("solutions/02_data_parallel.html")
        cell = page.locator(".cell:has(details.hide)").first
        code = cell.locator("details .highlight")
        expect(code).to_be_hidden()
        expect(page.locator(".cell_output", has_text="✓").first).to_be_visible()
        cell.get_by_text("Show the reference solution").click()
        expect(code).to_be_visible()
        cell.get_by_text("Hide the reference solution").click()
        expect(code).to_be_hidden()


@pytest.mark.parametrize("path", cases(CHAPTERS, CHAPTERS[:1]))
def test_answers_unfold(chromium: Browser, served: str, path: str) -> None:
    with reader(chromium, served) as window:
        page = window.open(path)
        fold = page.locator(
            ".bd-article :is(details:has(summary):not(.hide), .admonition.dropdown)"
        ).first
        fold.scroll_into_view_if_needed()
        before = fold.bounding_box()
        fold.locator("summary, .admonition-title").first.click()
        page.wait_for_function(
            "([e, height]) => e.getBoundingClientRect().height > height + 8",
            arg=[fold.element_handle(), before["height"] if before else 0],
        )


def test_search_finds_a_term(chromium: Browser, base: str) -> None:
    with reader(chromium, base) as window:
        page = window.open("book/index.html")
        page.locator(".search-button-field:visible").first.click()
        box = page.locator("#pst-search-dialog input[type=search]")
        expect(box).to_be_visible()
        box.fill("rendezvous")
        box.press("Enter")
        page.wait_for_url("**/search.html?q=rendezvous*")
        found = page.locator("#search-results li a", has_text="Glossary")
        expect(found.first).to_be_visible()
        found.first.click()
        page.wait_for_url("**/book/glossary.html*")
        expect(page.get_by_text("rendezvous", exact=True).first).to_be_visible()
        assert window.problems == []


def test_code_copies_without_prompts(chromium: Browser, served: str) -> None:
    with reader(chromium, served) as window:
        page = window.open("book/index.html")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("div.highlight:visible", has_text="make lab").first.hover()
        page.locator("button.copybtn:visible").first.click()
        page.wait_for_function(
            "async () => (await navigator.clipboard.readText()).trim() === 'make lab'"
        )
