"""Visits of the playground: what the browser keeps, several tabs, leaving, and reading offline."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.book.browser.playground import STARTED, PlainServer, Playground, plain_server
from tests.book.browser.reader import Reader, reader

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("book"),
]

FORMULAS = "caches.match(new URL('../_static/mathjax/tex-svg-full.js', location.href))"
# Rank 0 waits for rank 1, and the other ranks compute.
ENDLESS = "if rank:\n    while True:\n        pass\ncomm.recv(source=1)\n"


@pytest.fixture(scope="module")
def window(chromium: Browser, server: PlainServer) -> Iterator[Reader]:
    """A window that these tests share."""
    with reader(chromium, server.base) as opened:
        yield opened


@pytest.fixture
def playground(window: Reader) -> Playground:
    opened = Playground(window.page, window.base)
    opened.open("ring_shift")
    window.page.locator("#reset").click()
    return opened


def test_chapter_and_lab_load_nothing_of_the_playground_before_the_click(
    chromium: Browser, server: PlainServer
) -> None:
    with reader(chromium, server.base) as window:
        for path in ("book/01_mpi.html", "labs/01_mpi.html"):
            server.paths.clear()
            window.open(path)
            assert server.paths and not [one for one in server.paths if one.startswith("/play/")]
            window.page.get_by_role("link", name="Run it here").first.click()
            window.page.wait_for_function(STARTED)
            assert "4 ranks ready" in window.page.locator("#status").inner_text()
        window.page.get_by_role("link", name="Pyodide (MPL-2.0)").click()
        window.page.wait_for_url("**/play/licenses/index.html")
        licenses = window.page.locator("main li").all_inner_texts()
        assert [one.split()[0] for one in licenses] == ["CPython", "CodeMirror", "NumPy", "Pyodide"]
        assert not window.problems


def test_formulas_are_shown_offline_on_a_page_that_was_never_visited(
    chromium: Browser, server: PlainServer
) -> None:
    with reader(chromium, server.base) as window:
        playground = Playground(window.page, server.base)
        playground.open("ring_shift")
        assert not window.page.locator("mjx-container").count()
        window.page.wait_for_function(FORMULAS)
        server.offline = True
        try:
            playground.open("fit_alpha_beta")
            expect(window.page.locator("article mjx-container").first).to_be_visible()
            assert "4 ranks ready" in playground.text("#status")
        finally:
            server.offline = False


@pytest.mark.parametrize("leave", ["close", "reload"])
def test_leaving_a_page_during_a_run_keeps_the_code_and_frees_the_ranks(
    playground: Playground, leave: str
) -> None:
    other = Playground(playground.page.context.new_page(), playground.base)
    other.open("ring_shift")
    other.write(ENDLESS)
    other.page.locator("#run").click()
    expect(other.page.locator("#stop")).to_be_enabled()
    if leave == "close":
        other.page.close()
        other = Playground(playground.page.context.new_page(), playground.base)
        other.open("ring_shift")
    else:
        other.page.reload()
        other.page.wait_for_function(STARTED)
    try:
        assert other.program == ENDLESS
        assert "4 ranks ready" in other.text("#status")
        other.write("print(comm.allreduce(rank))\n")
        assert other.press("run") == ""
        assert other.text("#output").splitlines()[:2] == ["rank 0", "6"]
    finally:
        other.page.close()


def test_leaving_a_page_during_its_first_start_leaves_no_damaged_cache(
    chromium: Browser, server: PlainServer
) -> None:
    with reader(chromium, server.base) as window:
        page, context = window.page, window.page.context
        for begun in ("Loading", "Starting"):
            page.goto(f"{server.base}play/ring_shift.html", wait_until="commit")
            begins = "document.getElementById('status')?.textContent.startsWith(begun)"
            page.wait_for_function(f"begun => {begins}", arg=begun)
            page.close()
            page = context.new_page()
        playground = Playground(page, server.base)
        playground.open("ring_shift")
        assert "4 ranks ready" in playground.text("#status")
        playground.write("print(comm.allreduce(rank))\n")
        assert playground.press("run") == ""


def test_code_is_kept_shared_and_reset(playground: Playground) -> None:
    page = playground.page
    own, others = "print('mine')\n", "print('from a link')\n"
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    playground.write(others)
    page.locator("#share").click()
    page.wait_for_function("window.copied")
    link = page.evaluate("window.copied")
    playground.write(own)
    playground.open("ring_shift")
    assert playground.program == own
    playground.open("ring_shift", "#" + link.partition("#")[2])
    assert playground.program == others
    page.locator("#leave-shared").click()
    assert playground.program == own
    assert "#" not in page.url
    page.locator("#reset").click()
    playground.open("ring_shift")
    assert "not done yet" in playground.program


def test_two_tabs_do_not_disturb_each_other(playground: Playground) -> None:
    second = Playground(playground.page.context.new_page(), playground.base)
    try:
        second.open("deadlock")
        playground.write("while True:\n    pass\n")
        playground.page.locator("#run").click()
        assert "Deadlock" in second.press("run")
        playground.page.locator("#stop").click()
        assert "You stopped" in playground.ended()
    finally:
        second.page.close()


def test_a_new_version_replaces_the_old_one_as_a_whole(
    chromium: Browser, full_book: Path, tmp_path: Path
) -> None:
    for folder in ("play", "_static"):
        shutil.copytree(full_book / folder, tmp_path / folder)
    play = tmp_path / "play"
    [old] = play.glob("assets-*")
    with plain_server(tmp_path) as server, reader(chromium, server.base) as window:
        playground = Playground(window.page, server.base)
        playground.open("ring_shift")
        for file in [*play.glob("*.html"), play / "sw.js"]:
            file.write_text(file.read_text().replace(old.name, "assets-new"))
        old.rename(play / "assets-new")
        server.paths.clear()
        playground.open("ring_shift")
        assert "4 ranks ready" in playground.text("#status")
        assert not [path for path in server.paths if old.name in path]
        loaded = window.page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
        assert any("/assets-new/" in url for url in loaded)
        assert not window.problems
