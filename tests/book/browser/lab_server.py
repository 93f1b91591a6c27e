"""A JupyterLab for a test, with a free port and temporary folders, which leaves nothing behind."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from parlab.setup import jupyterlab
from tests.conftest import wait_until


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab, which serves the folder `root` and has its own files in `private`."""

    root: Path
    private: Path
    url: str
    token: str


@contextmanager
def lab_server(folder: Path, private: Path) -> Iterator[LabServer]:
    """Start JupyterLab on `folder`, with the course's settings and its own files in `private`."""
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    environment = os.environ | {name: str(private / place) for name, place in places.items()}
    options = ["--no-browser", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1"]
    command = jupyterlab.command(folder, *options, "--LabApp.expose_app_in_browser=True")
    with (private / "log").open("w") as log:
        started = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    process = psutil.Process(started.pid)
    try:
        runtime = private / "runtime"
        wait_until(
            lambda: started.poll() is not None or bool(_serving(runtime)), 120, "JupyterLab serves"
        )
        assert started.poll() is None, (private / "log").read_text()
        info = _serving(runtime)
        yield LabServer(folder, private, info["url"], info["token"])
    finally:
        family = [*process.children(recursive=True), process]
        started.terminate()
        try:
            # The server has then closed its port. At exit, Python sometimes waits for a thread of
            # anyio that was never ended (one of four, according to py-spy).
            wait_until(
                lambda: (
                    not any(alive(p) for p in family[:-1])
                    and not (alive(process) and _listens(process))
                ),
                60,
                "JupyterLab's door is closed, and its ranks end",
            )
        finally:
            for left in family:
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            started.wait()


def alive(process: psutil.Process) -> bool:
    """Return True if a process still runs. A zombie does not count."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _listens(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(c.status == psutil.CONN_LISTEN for c in process.net_connections("tcp"))
    return False


def _serving(runtime: Path) -> dict[str, str]:
    for file in runtime.glob("jpserver-*.json"):
        with suppress(json.JSONDecodeError):  # it is being written
            return json.loads(file.read_text())
    return {}
