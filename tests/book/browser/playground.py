"""A reader of the playground: opens its pages, writes programs, and presses its buttons."""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.book.browser.reader import DEADLINE_MS

# A page that loads again has no body for a moment.
STARTED = "document.body?.dataset.ready || document.getElementById('problem')?.hidden === false"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files without special headers, records their paths, and fails while it is offline."""

    server: "PlainServer"

    def do_GET(self) -> None:
        if self.server.offline:
            self.close_connection = True
            return
        self.server.paths.append(self.path.split("?")[0])
        super().do_GET()

    def log_message(self, *args: object) -> None:
        pass


class PlainServer(http.server.ThreadingHTTPServer):
    """A static server such as any host of static pages. `offline` makes it fail for a while."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.offline = False
        self.paths: list[str] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


@contextmanager
def plain_server(folder: Path) -> Iterator[PlainServer]:
    with PlainServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class Playground:
    """One window on pages of the playground."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        page.set_default_timeout(DEADLINE_MS)

    def open(self, name: str, fragment: str = "") -> None:
        """Open a page, and wait until its ranks have started or cannot start."""
        self.page.goto("about:blank")  # another fragment alone would not load the page
        self.page.goto(f"{self.base}play/{name}.html{fragment}")
        self.page.wait_for_function(STARTED)

    def write(self, program: str) -> None:
        """Replace the program by keyboard."""
        self.page.locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(program)

    @property
    def program(self) -> str:
        lines = self.page.locator(".cm-line").all_inner_texts()
        return "\n".join(line.removesuffix("\n") for line in lines)

    def solve(self, body: str) -> None:
        """Replace the line that an exercise leaves open."""
        stub = "    raise NotImplementedError"
        before, _, rest = self.program.partition(stub)
        self.write(f"{before}{body}\n{rest.partition(chr(10))[2]}")

    def press(self, button: str) -> str:
        """Press Run or Check, and wait for its end. Return the verdict."""
        self.page.locator(f"#{button}").click()
        return self.ended()

    def ended(self) -> str:
        expect(self.page.locator("#stop")).to_be_disabled(timeout=90_000)
        return self.text("#verdict")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def calls(self) -> str:
        """Return the rows of the table of calls: `rank 0: Send to rank 1`."""
        rows = self.page.locator(".calls tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return "\n".join(f"rank {rank}: {api} {other}" for rank, _, api, other, *_ in rows)

    @property
    def mistake(self) -> str | None:
        """The key of the mistake that the check has found."""
        return self.page.locator("#verdict [data-mistake]").get_attribute("data-mistake")
