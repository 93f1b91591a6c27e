"""An empty page with ranks: the playground's runtime without the playground's own pages."""

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from parlab_staff.play.build import HERE
from parlab_staff.play.bundle import write_python_files
from parlab_staff.play.pyodide import write_pyodide

SIZE = 4
START = """\
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
rank = comm.rank
"""

PAGE = """<!doctype html><title>Ranks</title><link rel="icon" href="data:,"><script type="module">
import { Ranks } from "./runtime/ranks.js";
window.start = async (size) => {
  window.ranks?.close();
  const onOutput = (rank, text) => {
    window.output[rank].push(text);
    if (window.stopWhenPrinted) window.ranks.stop();
  };
  window.ranks = new Ranks({ size, assets: ASSETS, onOutput, grace: 30_000 }); // for a busy machine
  await window.ranks.start();
};
window.run = async ({ stopWhenPrinted, stopAtOnce, ...program }) => {
  window.stopWhenPrinted = stopWhenPrinted;
  window.output = Array.from({ length: window.ranks.size }, () => []);
  await window.ranks.restarted;
  const running = window.ranks.run(program);
  if (stopAtOnce) {
    while (!window.ranks.current.resolve) await null;
    window.ranks.stop(); // before any rank runs the program
  }
  const ended = await running;
  const output = window.output.map((texts) => texts.join(""));
  return { ...ended, output, heaps: window.ranks.heaps };
};
</script>"""


class _Isolated(http.server.SimpleHTTPRequestHandler):
    """Sends the headers without which a page has no shared memory."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *args: object) -> None:
        pass


class RanksPage:
    """A window whose page has ranks."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def start(self, size: int) -> None:
        self.page.evaluate("size => start(size)", size)

    def run(self, code: str, setup: str = "", check: str = "", **options: float) -> dict[str, Any]:
        """Run a program.

        Options: `seconds`; `stopWhenPrinted`, to stop at the first output; and `stopAtOnce`.
        """
        program = {"code": code, "setup": setup, "check": check, **options}
        return self.page.evaluate("program => run(program)", program)


@contextmanager
def ranks_page(chromium: Browser, folder: Path, size: int) -> Iterator[RanksPage]:
    """Write the page into a folder, serve it, and start ranks there."""
    shutil.copytree(HERE / "runtime", folder / "runtime")
    assets = {"pyodide": f"{write_pyodide(folder)}/", "files": write_python_files(folder)}
    (folder / "index.html").write_text(PAGE.replace("ASSETS", json.dumps(assets)), encoding="utf-8")
    handler = functools.partial(_Isolated, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("window.start")
        opened = RanksPage(page)
        opened.start(size)
        yield opened
        page.close()
        server.shutdown()


def ends(ranks: RanksPage, code: str, **options: float) -> tuple[list[str], dict[str, Any]]:
    """Run a program. Return how each rank ended, and all about the run."""
    ended = ranks.run(START + code, **options)
    return [result["kind"] for result in ended["results"]], ended


def raises(ranks: RanksPage, code: str, error: str, rank: int = 0, line: int = 5) -> None:
    """Require that a program raises this error on this rank, in this line."""
    _, ended = ends(ranks, code)
    result = ended["results"][rank]
    assert (result["kind"], result["line"]) == ("raised", line), result
    assert error in result["error"]
