"""Readers who use a keyboard or a screen reader can read every page, in both themes."""

import re
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect

from tests.book.browser.playground import plain_server
from tests.book.browser.reader import reader
from tests.book.test_published_site import site  # noqa: F401, a fixture
from tests.support.built_book import pages

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]

SAMPLE = ["book/04_tensor_parallel.html", "book/index.html", "solutions/01_mpi.html"]
# In the middle of a change of colors, the contrast is neither theme's.
NO_TRANSITIONS = "*, ::before, ::after { transition: none !important; animation: none !important; }"
VIOLATIONS = """async () => {
    // MathJax adds MathML for screen readers. To axe, it is not the text of a table's head.
    const context = { exclude: ["th:has(.math)"] };
    const found = await axe.run(context, { resultTypes: ["violations"] });
    return found.violations.flatMap(({ id, nodes }) =>
        nodes.map(({ html, failureSummary }) => [id, html.slice(0, 200), failureSummary]));
}"""
THEMED = "theme => document.documentElement.dataset.theme === theme"


def violations(page: Page) -> list[list[str]]:
    found = []
    page.add_style_tag(content=NO_TRANSITIONS)
    page.evaluate(AXE_SCRIPT)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(THEMED, arg=theme)
        found += [[theme, *violation] for violation in page.evaluate(VIOLATIONS)]
    return found


# All pages, in both themes, take long on a slow machine.
OTHERS = pytest.param("others", marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("which", ["sample", OTHERS])
def test_axe_finds_no_violation(
    chromium: Browser, served: str, full_book: Path, which: str
) -> None:
    # index.html leads to another page.
    others = [path for path in pages(full_book) if path not in ("index.html", *SAMPLE)]
    with reader(chromium, served) as window:
        found = {}
        for path in SAMPLE if which == "sample" else others:
            if wrong := violations(window.open(path)):
                found[path] = wrong
        assert found == {}


@pytest.mark.nightly
def test_axe_finds_no_violation_on_the_page_404(
    chromium: Browser,
    site: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "parlab").symlink_to(site)  # only a published book has this page
    with plain_server(tmp_path) as server, reader(chromium, server.base) as window:
        page = window.open("parlab/404.html")
        assert not window.problems  # only before axe, which asks for style sheets itself
        assert violations(page) == []


def test_every_figure_says_what_it_shows(full_book: Path) -> None:
    for path in pages(full_book):
        text = (full_book / path).read_text(encoding="utf-8")
        for image in re.findall(r"<img\b[^>]*>", text):
            alt = re.search(r'\balt="([^"]*)"', image)
            assert alt, (path, image)
            if not re.search(
                r'class="(logo__image|sd-card-img-top)', image
            ):  # the text is next to it
                assert len(alt[1]) > 20 and "_images" not in alt[1], (path, image)
        for canvas in re.findall(r'<div class="plotly-canvas"[^>]*>', text):
            label = re.search(r'role="img" aria-label="([^"]*)"', canvas)
            assert label, (path, canvas)
            assert "axis: " in label[1] and label[1].count(". ") >= 2, (path, canvas)


def test_the_keyboard_moves_a_slider(chromium: Browser, served: str) -> None:
    with reader(chromium, served) as window:
        page = window.open("book/index.html")
        slider = page.get_by_role("slider", name="ranks")
        shown = "() => document.querySelector('figure.plotly-figure .bars').innerHTML"
        expect(slider).to_have_attribute("aria-valuetext", "64")
        before = page.evaluate(shown)
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(slider).not_to_have_attribute("aria-valuetext", "64")
        page.keyboard.press("Home")
        expect(slider).to_have_attribute("aria-valuenow", "0")
        expect(slider).to_be_focused()
        assert page.evaluate(shown) != before
        # The pointer's changes are announced, too.
        figure = page.locator("figure.plotly-figure").first
        rail = figure.locator(".slider-rail-touch-rect")
        box = rail.bounding_box()
        assert box is not None
        rail.click(position={"x": box["width"] * 0.98, "y": box["height"] / 2})
        expect(slider).not_to_have_attribute("aria-valuenow", "0")


def test_a_slider_says_its_value_without_markup(chromium: Browser, served: str) -> None:
    with reader(chromium, served) as window:
        slider = window.open("book/06_mixed_precision.html").get_by_role("slider", name="scale")
        expect(slider).to_have_attribute("aria-valuetext", "2^0")


def test_the_focus_is_visible(chromium: Browser, served: str) -> None:
    with reader(chromium, served) as window:
        page = window.open("book/index.html")
        page.keyboard.press("Tab")  # from now on, the browser shows the focus
        for name in ("Toggle primary sidebar", "Download this page"):
            button = page.get_by_role("button", name=name)
            button.focus()
            expect(button).to_have_css("outline-style", "solid")
        page.locator(".course-map .sd-card a").first.focus()
        assert page.evaluate(
            "getComputedStyle(document.activeElement, '::after').outlineOffset.startsWith('-')"
        ), "The card cuts off what is drawn around it."
        page.get_by_role("slider", name="ranks").focus()
        assert page.evaluate(
            """() => {
                const bottom = (element) => element.getBoundingClientRect().bottom;
                const slider = document.activeElement;
                return bottom(slider) + 6 <= bottom(slider.closest("svg"));
            }"""
        ), "The picture cuts off what is drawn around its slider."


def test_the_keyboard_opens_what_is_folded(chromium: Browser, served: str) -> None:
    with reader(chromium, served) as window:
        for path in ("book/03_zero.html", "solutions/03_zero.html"):
            page = window.open(path)
            fold = page.locator(".bd-article details").first
            expect(fold).not_to_have_attribute("open", "")
            fold.locator("summary").focus()
            page.keyboard.press("Enter")
            expect(fold).to_have_attribute("open", "")
