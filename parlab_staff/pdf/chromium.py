"""Prints an HTML document with Chromium, with page numbers in its table of contents."""

from importlib.resources import files
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from parlab_staff.pdf.tags import destinations

# The width of the text on paper, which figures are drawn for: A4 without the margins of print.css.
_WIDTH = round((210 - 2 * 18) / 25.4 * 96)
_NOT_DRAWN = "figure.plotly-figure:not(.drawn)"
_MINUTES = (
    10  # the time limit of each step but `evaluate`. A busy machine needs two for the whole book.
)
_FILL_IN = """pages => {
  for (const link of document.querySelectorAll("a[data-page]")) {
    link.dataset.page = pages[decodeURIComponent(link.hash.slice(1))] ?? "000";
  }
}"""


def print_document(document: Path, output: Path, browser: str) -> None:
    """Print the HTML file `document` as the PDF `output`. `browser` is the path of Chromium.

    Links with `data-page` show the number of the page that they lead to. It is not known in
    advance, so the document is printed again until the numbers are right. Twice is enough unless
    the numbers move text to other pages.
    """
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser)
        page = chromium.new_page(viewport={"width": _WIDTH, "height": 1000}, color_scheme="light")
        page.set_default_timeout(_MINUTES * 60_000)
        # Do this before the figures are drawn, because print has other widths than the screen.
        page.emulate_media(media="print")
        page.goto(document.as_uri())
        # Wait here, not in draw.js, because Playwright sets no time limit for `evaluate`.
        page.wait_for_function(f"!document.querySelector('{_NOT_DRAWN}')")
        for script in ("draw.js", "hatch.js", "heatmap.js"):
            page.evaluate(files(__package__).joinpath(script).read_text(encoding="utf-8"))
        numbers = _print(page, output)
        for _ in range(3):
            page.evaluate(_FILL_IN, numbers)
            if numbers == (numbers := _print(page, output)):
                break
        chromium.close()


def _print(page: Page, output: Path) -> dict[str, int]:
    """Print. Return the page number of each id of the document."""
    page.pdf(
        path=output, prefer_css_page_size=True, print_background=True, outline=True, tagged=True
    )
    return destinations(output)
