"""A headless Chromium, and the built book served to it from this machine."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from parlab.doctor.machine import find_chromium

QUIET = [
    "--no-sandbox",  # Chromium's sandbox does not run as root
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, without a window. It ends with these tests: it is never quite idle."""
    found = find_chromium()
    if found is None:
        pytest.fail("no chromium on this machine: install it to test the book in a browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield browser
        browser.close()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="package")
def served(full_book: Path) -> Iterator[str]:
    """Address of the full edition on a free port of this machine, ending in a slash."""
    handler = functools.partial(_Silent, directory=str(full_book))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
