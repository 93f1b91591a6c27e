"""A headless Chromium, and servers for it: the built book, and JupyterLab on a copy of the labs."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from parlab import progress
from parlab.runtime.paths import ROOT
from parlab.setup.doctor.programs import find_chromium
from tests.book.browser.lab_server import LabServer, lab_server
from tests.book.browser.playground import PlainServer, plain_server
from tests.book.browser.ranks_page import SIZE, RanksPage, ranks_page
from tests.support.untested import need

QUIET = [
    "--no-sandbox",  # Chromium's sandbox does not run as root
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, without a window. It ends after these tests, because it uses CPU."""
    need("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def ranks(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RanksPage]:
    """A page with four ranks, shared by all tests."""
    with ranks_page(chromium, tmp_path_factory.mktemp("ranks"), SIZE) as page:
        yield page


@pytest.fixture(scope="package")
def running_jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    root = tmp_path_factory.mktemp("course")
    untouched = shutil.ignore_patterns(progress.FOLDER)
    shutil.copytree(ROOT / "labs", root / "labs", ignore=untouched)
    with lab_server(root, tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture
def jupyterlab(running_jupyterlab: LabServer) -> LabServer:
    """JupyterLab on a copy of `labs/`, shared by all tests. Each test starts without open tabs."""
    shutil.rmtree(running_jupyterlab.private / "workspaces", ignore_errors=True)
    return running_jupyterlab


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="package")
def served(full_book: Path) -> Iterator[str]:
    """The address of the full edition on a free port of this machine, with a slash at the end."""
    handler = functools.partial(Silent, directory=str(full_book))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def server(full_book: Path) -> Iterator[PlainServer]:
    """The full edition without special headers. Each file of tests has its own address."""
    with plain_server(full_book) as running:
        yield running
