"""The kernel on which nbval runs a submission's cells, in the sandbox.

This is a pytest plugin (`-p parlab_staff.grading.kernel`). It replaces nbval's `RunningKernel` with
a class that
- starts the kernel in the sandbox, with the settings in `run.json`;
- notices at once when the kernel ends, while nbval would wait for the cell's time limit;
- keeps the status of the reply in addition to the outputs, because code can hide an error;
- limits the output of a cell;
- writes a line to `events.jsonl` when a cell starts, and another one when it ends.

No message of the kernel is trusted. Messages are read as JSON data, and those that do not belong to
the running cell are dropped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any

import nbval.plugin
import zmq
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbval.kernel import RunningKernel

from parlab.runtime.ansi import without_escapes
from parlab_staff.grading.rebuild import OWN, RESTORE
from parlab_staff.grading.sandbox import bubblewrap
from parlab_staff.grading.sandbox.limiter import die_with_parent
from parlab_staff.grading.sandbox.syscalls import seccomp_filter

RUN, EVENTS, ENDED = "run.json", "events.jsonl", "ended.json"
START_SECONDS = 180  # on a busy machine
INTERRUPT_SECONDS = 15  # enough time for a rank cell to free its ranks
IDLE_SECONDS = 20  # from the reply to the end of the outputs
POLL_MILLISECONDS = 200
OUTPUT_CHARACTERS = 200_000  # the most that is kept of a cell's output
MESSAGE_BYTES = 64 * 2**20  # a longer message is refused before it is read
BROKEN_MESSAGES = 100  # after this many unreadable messages, the kernel is ended


class KernelGone(Exception):
    """The kernel ended, or the grader ended it. The text says why."""


class WatchedKernel(RunningKernel):
    """One kernel for one submission."""

    def __init__(self, kernel_name: str, cwd: str | None = None, startup_timeout: float = 60):
        self.folder = Path(cwd or ".")
        self.run = json.loads((self.folder / RUN).read_text(encoding="utf-8"))
        self.gone = ""  # why the kernel ended
        self.before = OWN  # the id of the cell before the running cell
        self.cell: dict[str, Any] = {}
        self.shown: list[dict] = []  # messages of the cell, for nbval
        door = Path(self.run["door"])
        self.km = KernelManager(
            transport="ipc", connection_file=str(door / "kernel.json"), context=_context()
        )
        self.km._kernel_spec = KernelSpec(
            argv=self.command(door),
            language="python",
            display_name="parlab",
            interrupt_mode="message",  # a signal would end the sandbox
        )
        self.km.start_kernel(
            cwd=str(door),
            env=_environment(door),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.kc = self.km.client()
        self.kc.start_channels()
        try:
            self.kc.wait_for_ready(timeout=START_SECONDS)
        except RuntimeError as error:
            self.record(event="no kernel", why=f"{error} {self.why_ended()}")
            self.stop()
            raise
        self.poller = zmq.Poller()
        for channel in (self.kc.shell_channel, self.kc.iopub_channel):
            self.poller.register(channel.socket, zmq.POLLIN)

    def command(self, door: Path) -> list[str]:
        program = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        if self.run["sandbox"] == "none":
            return program
        limiter = Path(__file__).parent / "sandbox" / "limiter.py"
        calls = self.folder / "calls.bpf"
        calls.write_bytes(seccomp_filter())
        limits = [str(self.run[name]) for name in ("memory", "processes", "disk")]
        start = [sys.executable, "-I", "-S", str(limiter), str(self.folder / ENDED), str(door)]
        return [*start, str(os.getpid()), str(calls), *limits, *bubblewrap.command(door, program)]

    def record(self, **event: Any) -> None:
        line = json.dumps(event).encode() + b"\n"
        with open(self.folder / EVENTS, "ab") as file:
            file.write(line)

    # The methods that nbval calls

    def execute_cell_input(self, cell_input: str, allow_stdin: bool | None = None) -> str:
        self.shown = []
        return super().execute_cell_input(cell_input, allow_stdin)

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """Read messages until the cell ends in any way. nbval then calls `get_message`."""
        self.cell = {"outcome": "", "ename": "", "evalue": "", "text": "", "json": []}
        self.begun = self.replied = self.idle = False
        self.broken = 0
        try:
            self._follow(msg_id, timeout or 0)
        except KernelGone as gone:
            self.gone = str(gone)
            if not self.cell["outcome"]:
                # The student's own cell before this one may have caused the end.
                unclear = self.before.startswith(OWN)
                outcome = "died" if self.begun or not unclear else "not_reached"
                self.cell |= {"outcome": outcome, "evalue": self.gone}
            self.record(event="gone", why=self.gone)
            self.kill()
        finally:
            self.shown.append(_message(msg_id, "status", execution_state="idle"))
        if self.cell["outcome"] != "ok":
            error = _message(msg_id, "error", ename=self.cell["ename"] or "Error")
            error["content"] |= {"evalue": self.cell["evalue"], "traceback": []}
            self.shown.insert(-1, error)

    def get_message(self, stream: str, timeout: float | None = None) -> dict:
        if not self.shown:
            raise Empty
        return self.shown.pop(0)

    def await_idle(self, parent_id: str, timeout: float) -> None:
        self.shown.clear()

    def interrupt(self) -> None:
        self.km.interrupt_kernel()

    def is_alive(self) -> bool:
        return not self.gone and super().is_alive()

    def stop(self) -> None:
        """End the kernel and all processes in the sandbox."""
        self.kc.stop_channels()
        self.kill()

    # Reading the messages of a cell

    def _follow(self, msg_id: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not (self.replied and self.idle):
            if time.monotonic() > deadline:
                if self.replied:  # the outputs do not end, or the message of their end was lost
                    return
                self._time_out(msg_id, seconds)
                return
            self._take(msg_id, min(POLL_MILLISECONDS, 1000 * (deadline - time.monotonic())))
            if self.replied and not self.idle:
                deadline = min(deadline, time.monotonic() + IDLE_SECONDS)

    def _time_out(self, msg_id: str, seconds: float) -> None:
        self.interrupt()
        deadline = time.monotonic() + INTERRUPT_SECONDS
        while not self.replied and time.monotonic() < deadline:
            self._take(msg_id, POLL_MILLISECONDS)
        self.cell["outcome"] = "timeout"
        if not self.replied:
            raise KernelGone(f"a cell did not end in {seconds:g} s, and could not be interrupted")

    def _take(self, msg_id: str, milliseconds: float) -> None:
        """Read messages for at most this long. Raises KernelGone."""
        ready = dict(self.poller.poll(max(1, milliseconds)))
        for channel in (self.kc.shell_channel, self.kc.iopub_channel):
            if channel.socket in ready:
                try:
                    self._read(msg_id, channel.get_msg(timeout=0))
                except Empty:
                    pass
                except Exception:  # what the kernel sent is not a message
                    self.broken += 1
                    if self.broken > BROKEN_MESSAGES:
                        self.cell |= {"outcome": "error", "ename": "BrokenMessages"}
                        raise KernelGone("it sent messages that no kernel sends") from None
        if not ready and not self.km.is_alive():
            raise KernelGone(self.why_ended())

    def _read(self, msg_id: str, message: dict) -> None:
        if message["parent_header"].get("msg_id") != msg_id:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "execute_reply":
            self.replied = True
            if not self.cell["outcome"]:
                self.cell["outcome"] = "ok" if content["status"] == "ok" else "error"
            if content["status"] != "ok":
                self._failed(content)
        elif kind == "status":
            # The cell ends with `idle` after `busy`. Its code could send a false `idle`, but the
            # reply comes last.
            self.begun = True
            self.idle |= content["execution_state"] == "idle"
        elif kind == "stream":
            self._print(str(content["text"]))
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self._display(content["data"])
        elif kind == "error":
            self.cell["outcome"] = self.cell["outcome"] or "error"
            self._failed(content)

    def _failed(self, content: dict) -> None:
        if not self.cell["ename"]:
            self.cell["ename"] = _plain(content.get("ename", ""))[:200]
            self.cell["evalue"] = _plain(content.get("evalue", ""))[:OUTPUT_CHARACTERS]

    def _print(self, text: str) -> None:
        # Keep the end, because a check prints last that it has passed.
        self.cell["text"] = (self.cell["text"] + _plain(text))[-OUTPUT_CHARACTERS:]

    def _display(self, data: dict) -> None:
        if "application/json" not in data:
            return
        value = data["application/json"]
        if len(self.cell["json"]) < 3 and len(json.dumps(value)) <= OUTPUT_CHARACTERS:
            self.cell["json"].append(value)

    # The end of the kernel

    def kill(self) -> None:
        if self.km.has_kernel:
            self.km.shutdown_kernel(now=True)

    def why_ended(self) -> str:
        """Return the reason that the limiter wrote before it ended."""
        try:
            ended = json.loads((self.folder / ENDED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "its process ended"
        if ended["limit"]:
            return ended["limit"]
        return f"its process ended {_plain(ended['output'])}".rstrip()


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of a kernel without a sandbox. A sandbox clears it."""
    # ipykernel captures less when it sees PYTEST_CURRENT_TEST.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | bubblewrap.environment(home)


def _context() -> zmq.Context:
    context = zmq.Context()
    context.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)  # applies to sockets that it makes later
    return context


def _message(msg_id: str, kind: str, **content: Any) -> dict:
    return {"msg_type": kind, "parent_header": {"msg_id": msg_id}, "content": content}


def _plain(text: Any) -> str:
    return without_escapes(str(text)).encode("utf-8", "replace").decode()


# The plugin


def pytest_configure(config: Any) -> None:
    grader = json.loads((Path(str(config.rootpath)) / RUN).read_text(encoding="utf-8"))["grader"]
    if sys.platform == "linux":
        die_with_parent(grader)
    # The grader ends pytest with SIGTERM. Stop as for Ctrl-C, so that nbval ends the kernel.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    nbval.plugin.RunningKernel = WatchedKernel


def pytest_runtest_call(item: Any) -> None:
    item.options.clear()  # comments in a student's cell must not control nbval
    kernel = item.parent.kernel
    if kernel.is_alive():
        kernel.record(event="start", cell=item.cell.id)
    elif not kernel.gone:  # it ended between two cells
        kernel.gone = kernel.why_ended()
        kernel.record(event="gone", why=kernel.gone)


def pytest_runtest_teardown(item: Any) -> None:
    kernel = item.parent.kernel
    if kernel is not None and kernel.cell:
        # The outputs of the student's own cells are not used, and there may be thousands of them.
        own = item.cell.id.startswith((OWN, RESTORE))
        fields = {"outcome": kernel.cell["outcome"]} if own else kernel.cell
        kernel.record(event="end", cell=item.cell.id, **fields)
        kernel.cell, kernel.before = {}, item.cell.id
