"""A reader's window, which opens pages and records their problems."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

DEADLINE_MS = 180_000  # long enough for a busy machine
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}

READY = """() => document.readyState === "complete"
    && document.querySelectorAll("figure.plotly-figure:not(.drawn)").length === 0"""
# This resolves when MathJax has typeset the page, or at once if it has no formulas.
TYPESET = "() => window.MathJax?.startup?.promise"


class Reader:
    """One window. `problems` lists console errors, and failed or external requests, with pages."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._problem(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._response)
        # `route` would turn off the cache, so that each page would load Plotly and MathJax again.
        page.on("request", self._request)

    def open(self, path: str, viewport: dict[str, int] | None = None) -> Page:
        """Go to a page of the book, and wait until its figures and formulas are drawn.

        If the window gets the size of `viewport`, no page draws itself again for that.
        """
        if viewport:
            self.page.goto("about:blank")
            self.page.set_viewport_size(viewport)
        self.page.goto(self.base + path)
        self.page.wait_for_function(READY)
        self.page.evaluate(TYPESET)
        return self.page

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:", "about:")):
            self._problem(f"asks another host: {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._problem(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        # Leaving a page cancels its unfinished requests, such as one for an icon.
        if request.failure != "net::ERR_ABORTED":
            self._problem(f"failed ({request.failure}): {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self._problem(f"{response.status}: {response.url}")

    def _problem(self, text: str) -> None:
        self.problems.append(f"{self.page.url.removeprefix(self.base)}: {text}")


@contextmanager
def reader(
    browser: Browser,
    base: str,
    viewport: dict[str, int] = DESK,
    theme: str = "light",
    touch: bool = False,
) -> Iterator[Reader]:
    """Open a new window with the size of `viewport`, for a reader whose system has `theme`."""
    context = browser.new_context(viewport=viewport, color_scheme=theme, has_touch=touch)
    context.set_default_timeout(DEADLINE_MS)  # also for further windows
    try:
        yield Reader(context.new_page(), base)
    finally:
        context.close()
