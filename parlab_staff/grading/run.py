"""Runs one rebuilt notebook in one pytest process with nbval, which has its own folder."""

import contextlib
import hashlib
import itertools
import json
import os
import platform
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat import NotebookNode

from parlab.runtime.paths import ROOT
from parlab_staff.grading.kernel import EVENTS, RUN

PREFIX = "parlab-grade-"
POLL_SECONDS = 0.1
END_SECONDS = 10
MEMORY = 2**30  # the limit, in bytes, of the process that reads the kernel's messages
# A Unix socket's path has at most 107 characters, so the folder of the kernel's sockets has fewer.
DOOR_CHARACTERS = 80
# jsonschema would load a grammar for URLs, which no notebook needs, in 1.5 s.
PYTEST = (
    "import sys; sys.modules['rfc3987_syntax'] = None; "
    "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Limits:
    """The limits of a submission: seconds, bytes, processes."""

    cell_seconds: float = 120.0
    seconds: float = 900.0
    memory: int = 8 * 2**30
    processes: int = 1024  # and threads
    disk: int = 64 * 2**20


@dataclass
class CellRun:
    """The result of running a cell.

    `outcome` is ok, error, timeout, died, or not_reached.
    """

    outcome: str = "not_reached"
    ename: str = ""
    evalue: str = ""
    text: str = ""
    json: list[Any] = field(default_factory=list)


@dataclass
class NotebookRun:
    """The result of running a notebook.

    Attributes:
        cells: the results of all cells of the notebook, by cell id.
        broken: what went wrong on the grader's side; "" if nothing did.
        ended: why the run ended before its last cell, for the student; "" if it did not.
    """

    cells: dict[str, CellRun]
    broken: str = ""
    ended: str = ""


Started = Callable[[str], None]


def run(
    notebook: NotebookNode,
    limits: Limits,
    sandbox: str,
    started: Started = lambda cell: None,
    stop: threading.Event | None = None,
) -> NotebookRun:
    """Run the notebook's cells. This always returns, and leaves no process running.

    Args:
        sandbox: `bwrap` or `none`.
        started: called with the id of each cell that starts.
        stop: setting it ends the run.
    """
    own = f"{PREFIX}{os.getpid()}-{_machine()}-"
    folder = Path(tempfile.mkdtemp(prefix=own, dir=_short_folder()))
    try:
        (folder / "door").mkdir(mode=0o700)
        nbformat.write(notebook, folder / "notebook.ipynb")
        settings = {"sandbox": sandbox, "door": str(folder / "door"), "grader": os.getpid()}
        settings |= {name: getattr(limits, name) for name in ("memory", "processes", "disk")}
        (folder / RUN).write_text(json.dumps(settings), encoding="utf-8")
        return _follow(folder, notebook, limits, started, stop or threading.Event())
    finally:
        _remove(folder)


def _follow(
    folder: Path,
    notebook: NotebookNode,
    limits: Limits,
    started: Started,
    stop: threading.Event,
) -> NotebookRun:
    with open(folder / "pytest.log", "wb") as log:
        process = subprocess.Popen(
            _command(folder, limits),
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + limits.seconds
    events = _Events(folder / EVENTS, notebook, started)
    flooded = late = False
    while process.poll() is None:
        late = time.monotonic() > deadline
        flooded = _memory(process.pid) > MEMORY
        if late or flooded or stop.is_set():
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
        events.read()
    if process.poll() is None:
        # First let it stop as for Ctrl-C, so that it ends the kernel, which ends the sandbox.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    events.read()
    result = events.result
    if late:
        events.end("timeout", f"all cells together took more than {limits.seconds:g} s")
    elif flooded:
        events.end("died", "it sent more than the grader has memory to read")
    elif not events.complete and not result.ended:
        tail = (folder / "pytest.log").read_text(encoding="utf-8", errors="replace")[-2000:].strip()
        result.broken = result.broken or f"pytest ended with {status}: {tail}"
    return result


def _memory(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.NoSuchProcess:
        return 0


class _Events:
    """Reads the plugin's events while the notebook runs."""

    def __init__(self, path: Path, notebook: NotebookNode, started: Started) -> None:
        self.path, self.started = path, started
        self.position = 0
        self.result = NotebookRun({cell.id: CellRun() for cell in notebook.cells})
        self.running: str | None = None

    def read(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "no kernel":
            self.result.broken = f"the kernel did not start: {event['why']}"
            return
        if kind == "gone":
            self.result.ended = event["why"]
            return
        cell = event.pop("cell")
        if kind == "start":
            self.running = cell
            self.started(cell)
        elif kind == "end":
            self.running = None
            self.result.cells[cell] = CellRun(**event)

    @property
    def complete(self) -> bool:
        return all(ran.outcome != "not_reached" for ran in self.result.cells.values())

    def end(self, outcome: str, why: str) -> None:
        """Record why the run was ended, and in which cell."""
        self.result.ended = why
        if self.running:
            self.result.cells[self.running] = CellRun(outcome, evalue=why)


def _command(folder: Path, limits: Limits) -> list[str]:
    """Return the command for nbval with our plugin, and without any other settings."""
    options = ["--nbval-lax", f"--nbval-cell-timeout={limits.cell_seconds}"]
    options += ["--nbval-current-env", "--noconftest", "-c", os.devnull, f"--rootdir={folder}"]
    options += ["-p", "no:cacheprovider", "-p", "no:terminalreporter"]
    options += ["-p", "nbval.plugin", "-p", "parlab_staff.grading.kernel"]
    return [sys.executable, "-P", "-c", PYTEST, str(folder / "notebook.ipynb"), *options]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}


def _short_folder() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) < DOOR_CHARACTERS - 47 else "/tmp"


def _machine() -> str:
    """Return a mark of this machine, because the temporary folder can be that of a cluster."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:6]


def remove_leftovers(temporary: Path | None = None) -> None:
    """Remove folders of this user's graders that were killed, and no others."""
    temporary = temporary or Path(_short_folder())
    for folder in temporary.glob(f"{PREFIX}*-{_machine()}-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)) and _is_own(folder):
            _remove(folder)


def _is_own(path: Path) -> bool:
    """Return True for this user's folder, but not for a link, which others could replace."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:  # another grader, which also starts, has just removed it
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _remove(folder: Path) -> None:
    """Remove a folder, even if its tree is deeper than a path may be, or permissions are missing.

    Repeat this for a while, because processes of the sandbox may still write for a moment.
    """
    deadline = time.monotonic() + END_SECONDS
    for tool in itertools.cycle((["rm", "-rf"], ["chmod", "-R", "u+rwx"])):
        subprocess.run([*tool, str(folder)], stderr=subprocess.DEVNULL)
        if not folder.exists() or time.monotonic() > deadline:
            return
