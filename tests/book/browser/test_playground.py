"""The playground of the built book in a browser, from a server that sends no special headers."""

import gzip
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from parlab_staff.course.percent_source import read_lab
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.play.build import write_playground
from parlab_staff.play.pages import LABS, page_names, played
from parlab_staff.play.tries import TRIES
from tests.book.browser.firefox import find_firefox, firefox
from tests.book.browser.playground import STARTED, PlainServer, Playground, plain_server
from tests.book.browser.reader import Reader, reader

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("book")]

KEYS = [one.key for name in LABS for one in played(read_lab(SOLUTIONS / f"{name}.py"))]
MOST_BYTES = 10_000_000
SENDS_FIRST = """\
    received = np.empty_like(x)
    comm.Send(x, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received"""
NEVER_WAITS = SENDS_FIRST.replace("comm.Send(", "comm.Isend(")
SENDS_AND_RECEIVES = """\
    received = np.empty_like(x)
    comm.Sendrecv(x, (comm.rank + 1) % comm.size, 0, received, (comm.rank - 1) % comm.size)
    return received"""


@pytest.fixture(scope="module")
def window(chromium: Browser, server: PlainServer) -> Iterator[Reader]:
    """A window of a reader who has opened the page of `ring_shift`, shared by these tests."""
    with reader(chromium, server.base) as opened:
        Playground(opened.page, server.base).open("ring_shift")
        yield opened


@pytest.fixture
def playground(window: Reader) -> Playground:
    """The page of `ring_shift` with its own program."""
    opened = Playground(window.page, window.base)
    if not window.page.url.endswith("/ring_shift.html"):
        opened.open("ring_shift")
    window.page.locator("#reset").click()
    return opened


def test_the_first_visit_loads_at_most_10_mb_and_nothing_from_elsewhere(
    window: Reader, server: PlainServer, full_book: Path
) -> None:
    assert not window.problems
    paths = {path for path in server.paths if not path.endswith("/")}
    assert any(path.endswith(".whl") for path in paths), "NumPy was not loaded"
    total = 0
    for path in paths:
        content = (full_book / path.lstrip("/")).read_bytes()
        total += min(len(content), len(gzip.compress(content)))  # as most hosts send it
    assert total < MOST_BYTES, f"{total:,} bytes"


def test_an_exercise_is_done_with_wrong_answers_first(playground: Playground) -> None:
    assert "not done yet" in playground.press("check")
    playground.solve(NEVER_WAITS)
    assert "The check found a problem" in playground.press("check")
    assert playground.mistake == "no_wait"
    assert "This is the last one, with 4 ranks." in playground.text("#picture")
    playground.page.locator("#reset").click()
    playground.solve(SENDS_AND_RECEIVES)
    assert "The check passed" in playground.press("check")
    assert "This is the last one on all ranks, with 4 ranks." in playground.text("#picture")
    assert playground.text("#output").count("✓") == 1
    sent = re.findall(r"rank (\d): Sendrecv to rank (\d)", playground.calls())
    assert sorted(sent) == [
        ("0", "1"),
        ("1", "2"),
        ("2", "3"),
        ("3", "0"),
    ]
    assert playground.press("run") == ""
    assert "1 message and 32 bytes on 4 ranks" in playground.text(".counts")
    assert playground.text("#output").splitlines()[:2] == ["rank 0", "[3. 3. 3. 3.]"]


def test_a_deadlock_is_reported_with_each_ranks_line(playground: Playground) -> None:
    playground.solve(SENDS_FIRST)
    verdict = playground.press("run")
    assert "Deadlock: no rank can continue." in verdict
    for rank in range(4):
        waits = f"rank {rank} waits for rank {(rank + 1) % 4} to receive at line 9: comm.Send("
        assert waits in verdict
    expect(playground.page.locator(".cm-lint-marker-error")).to_have_count(1)
    expect(playground.page.locator(".cm-lineNumbers")).to_contain_text("12")
    expect(playground.page.locator(".tok-keyword").first).to_have_text("def")
    playground.page.get_by_role("button", name="Last", exact=True).click()
    step = playground.text(".step").replace("\N{NO-BREAK SPACE}", " ").rstrip(".")
    left = step.partition("4 messages that no rank receives: ")[2]
    sends = ["0 → 1", "1 → 2", "2 → 3", "3 → 0"]  # shown in the order in which they began
    assert sorted(left.split(", ")) == [f"{send} (32 bytes)" for send in sends]
    counts = playground.text(".counts").splitlines()
    assert counts[0] == "All ranks together sent 0 messages and 0 bytes."
    assert counts[2] == "No rank received 4 more messages (128 bytes)."
    assert playground.text(".at-rank") == "0 1 2 3"


def test_stop_ends_a_program_that_never_ends(playground: Playground) -> None:
    playground.write("while True:\n    pass\n")
    playground.page.locator("#run").click()
    playground.page.locator("#stop").click()
    assert "You stopped the program." in playground.ended()
    playground.write("print(comm.allreduce(rank))\n")
    assert playground.press("run") == ""
    assert playground.text("#output").splitlines()[:2] == ["rank 0", "6"]


@pytest.mark.nightly
def test_after_the_first_visit_all_pages_work_offline(
    playground: Playground, server: PlainServer
) -> None:
    server.offline = True
    try:
        playground.open("deadlock")
        assert "4 ranks ready" in playground.text("#status")
        assert "Deadlock" in playground.press("run")
    finally:
        server.offline = False


@pytest.mark.parametrize(
    ("lack", "problem"),
    [
        ("", "The service worker of this page could not start"),  # the context blocks it
        ("delete window.WebAssembly", "This browser has no WebAssembly"),
        ("Object.defineProperty(window, 'isSecureContext', {value: false})", "https address"),
    ],
)
def test_a_page_names_what_the_browser_lacks(
    chromium: Browser, server: PlainServer, lack: str, problem: str
) -> None:
    with chromium.new_context(service_workers="block") as context:
        context.add_init_script(lack)
        playground = Playground(context.new_page(), server.base)
        playground.open("ring_shift")
        assert problem in playground.text("#problem")
        assert playground.page.locator("#run").is_disabled()


def test_too_little_memory_is_reported_with_what_to_do(window: Reader) -> None:
    page = window.page.context.new_page()
    try:
        page.add_init_script(
            "SharedArrayBuffer = function () { throw new RangeError('allocation failed'); }"
        )
        playground = Playground(page, window.base)
        playground.open("ring_shift")
        assert "too little free memory for 4 ranks" in playground.text("#problem")
    finally:
        page.close()


def test_a_page_in_a_folder_on_disk_says_what_it_needs(chromium: Browser, full_book: Path) -> None:
    with chromium.new_context() as context:
        playground = Playground(context.new_page(), f"{full_book.as_uri()}/")
        playground.open("ring_shift")
        assert "python -m http.server" in playground.text("#problem")


def test_a_page_reloads_only_once_to_be_isolated(chromium: Browser, server: PlainServer) -> None:
    with chromium.new_context() as context:
        context.add_init_script("Object.defineProperty(window, 'crossOriginIsolated', {value: 0})")
        page = context.new_page()
        loads: list[str] = []
        page.on("load", lambda loaded: loads.append(loaded.url))
        Playground(page, server.base).open("ring_shift")
        assert "does not isolate" in page.locator("#problem").inner_text()
        assert len([url for url in loads if url != "about:blank"]) == 2


@pytest.mark.nightly
def test_the_reference_on_each_page_passes_and_its_messages_fit_the_formula(
    playground: Playground,
) -> None:
    page = playground.page
    for key in KEYS:
        playground.open(key)
        page.locator("#use-reference").evaluate("(button) => button.click()")  # it is folded
        assert "The check passed" in playground.press("check"), key
        assert playground.press("run") == "", key
        assert playground.text("#output").startswith("rank 0"), key
        if TRIES[key].formula:
            _, most, *_, formula = playground.text(".counts").splitlines()
            assert re.findall(r"most (.+)\.", most) == re.findall(r": (.+) on 4 ranks", formula)
        page.locator("#reset").click()


@pytest.mark.nightly
def test_each_example_ends_as_its_text_says(playground: Playground) -> None:
    ends = {
        "collectives": ("", "all-to-all"),
        "deadlock": ("Deadlock", ""),
        "extra_collective": ("rank 0 waits in Allreduce", "3 becomes"),
        "message_order": ("", "from rank 3 with tag 30"),
        "schedule": ("", "done after"),
        "zero_traffic": ("", "layer 1: [0.75 1.5  2.25 3.  ]"),
    }
    assert {*ends, *KEYS} == set(page_names())
    for name, (verdict, output) in ends.items():
        playground.open(name)
        ended = playground.press("run")
        assert verdict in ended and bool(ended) == bool(verdict), name
        assert output in playground.text("#output"), name
        if name == "collectives":
            playground.page.locator(".algorithms summary").click()
            rows = playground.text(".algorithms tbody").splitlines()
            assert "1\tAllreduce\t16\tring: 2(N − 1) rounds, 2(N − 1)/N · S bytes\t6\t24" in rows


@pytest.mark.nightly
def test_in_the_student_edition_an_exercise_uses_the_readers_own_functions(
    chromium: Browser, full_book: Path, tmp_path: Path
) -> None:
    write_playground(tmp_path, "student")
    shutil.copytree(full_book / "_static", tmp_path / "_static")
    with plain_server(tmp_path) as server, reader(chromium, server.base) as window:
        playground = Playground(window.page, server.base)
        playground.open("ring_all_reduce")
        assert not window.page.locator("#use-reference").count()
        playground.solve("    ring_reduce_scatter(x, comm)\n    ring_all_gather(x, comm)")
        assert "exercise ring_reduce_scatter: not done yet" in playground.press("run")
        for key, line in (("ring_reduce_scatter", "x[:] = 7"), ("ring_all_gather", "pass")):
            playground.open(key)
            playground.solve(f"    {line}")
        playground.open("ring_all_reduce")
        assert playground.press("run") == ""
        assert playground.text("#output").splitlines()[1] == "0007  0007  0007  0007"


@pytest.mark.nightly
def test_a_keyboard_is_enough(playground: Playground) -> None:
    playground.write("print(rank)")
    playground.page.keyboard.press("Escape")
    expect(playground.page.locator("#run")).to_be_focused()
    playground.page.keyboard.press("Enter")
    assert playground.ended() == ""
    assert "rank 3\n3" in playground.text("#output")


@pytest.mark.nightly
@pytest.mark.parametrize("size", [1, 8])
def test_the_reader_chooses_the_number_of_ranks(playground: Playground, size: int) -> None:
    playground.page.select_option("#size", str(size))
    playground.page.wait_for_function(f"document.body.dataset.ready === '{size}'")
    playground.write("print(comm.allreduce(1))\n")
    assert playground.press("run") == ""
    assert playground.text("#output").splitlines().count(str(size)) >= size
    playground.page.select_option("#size", "4")
    playground.page.wait_for_function("document.body.dataset.ready === '4'")


@pytest.mark.nightly
def test_firefox_runs_the_same(server: PlainServer, tmp_path: Path) -> None:
    if not find_firefox():
        pytest.skip("Firefox: not found. `.ci/packages test-all` installs it on Debian.")
    with firefox(tmp_path) as browser:
        browser.open(f"{server.base}play/ring_shift.html")
        browser.wait_for(STARTED)
        assert "4 ranks ready" in browser.value("document.getElementById('status').textContent")
        for button, verdict in (("check", "not done yet"), ("run", "not done yet")):
            browser.value(f"document.getElementById('{button}').click()")
            browser.wait_for("document.getElementById('stop').disabled")
            assert verdict in browser.value("document.getElementById('verdict').textContent")
        browser.value("document.getElementById('use-reference').click()")
        browser.value("document.getElementById('check').click()")
        browser.wait_for("document.getElementById('stop').disabled")
        passed = browser.value("document.getElementById('verdict').textContent")
        assert "The check passed" in passed
        browser.open(f"{server.base}play/deadlock.html")
        browser.wait_for(STARTED)
        browser.value("document.getElementById('run').click()")
        browser.wait_for("document.getElementById('stop').disabled")
        verdict = browser.value("document.getElementById('verdict').textContent")
        assert "Deadlock: no rank can continue." in verdict
