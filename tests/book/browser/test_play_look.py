"""Pages of the playground on a phone: in both themes, with a finger, and after it has turned."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.book.browser.playground import PlainServer, Playground
from tests.book.browser.reader import PHONE, reader

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("book"),
]

FINGER = 44  # the height in pixels that a finger needs
# Elements that a reader presses, except links within a sentence. A label belongs to its content.
TOO_LOW = """least =>
    [...document.querySelectorAll("button, select, input, summary, nav a, .plain li > a")]
    .map((one) => one.closest("label") ?? one)
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < least - 0.5)
    .map((one) => one.textContent)"""


def unfold(page: Page) -> None:
    for details in page.locator("details").all():
        details.evaluate("(one) => { one.open = true; }")


def faults(page: Page) -> list[object]:
    """Return elements that a reader with a phone or a screen reader cannot use."""
    found = [one["id"] for one in Axe().run(page).response["violations"]]
    if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
        found.append("the page scrolls sideways")
    return found + page.evaluate(TOO_LOW, FINGER)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(
    chromium: Browser, server: PlainServer, full_book: Path, theme: str
) -> None:
    with reader(chromium, server.base, PHONE, theme, touch=True) as window:
        playground = Playground(window.page, server.base)
        for name in ("deadlock", "ring_all_reduce", "fit_alpha_beta"):
            playground.open(name)
            playground.press("run")
            unfold(window.page)
            assert not faults(window.page), name
        for path in sorted((full_book / "play").rglob("*.html")):
            window.page.goto(f"{server.base}{path.relative_to(full_book).as_posix()}")
            unfold(window.page)
            assert not faults(window.page), path.name
        assert not window.problems


def test_the_picture_fits_the_window_after_a_phone_has_turned(
    chromium: Browser, server: PlainServer
) -> None:
    with reader(chromium, server.base, PHONE) as window:
        playground = Playground(window.page, server.base)
        playground.open("deadlock")
        playground.press("run")
        figure = window.page.locator("#picture .figure")
        label = figure.get_by_text("rank 3", exact=True)
        height = label.evaluate("one => one.getBoundingClientRect().height")
        window.page.set_viewport_size({"width": PHONE["height"], "height": PHONE["width"]})
        expect(figure.get_by_role("img")).to_have_attribute(
            "width", str(figure.evaluate("one => one.clientWidth") - 58)
        )
        assert label.evaluate("one => one.getBoundingClientRect().height") == height
