"""Runs cells in a real Jupyter kernel, as a notebook does."""

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

from jupyter_client.manager import KernelManager

from parlab.runtime.ansi import without_escapes


@dataclass
class Ran:
    """The result of one cell."""

    status: str  # "ok" or "error", from the reply, not from the outputs
    text: str  # stdout, stderr and plain-text results
    error: str  # name of the exception
    message: str  # the traceback as the notebook shows it
    seconds: float


class Notebook:
    """One kernel. End it with `shutdown`, or without a clean-up with `kill`."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        # Use sockets in a folder, because another kernel may take a free port at the same time.
        self._folder = tempfile.TemporaryDirectory()
        self.manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            connection_file=str(Path(self._folder.name) / "kernel.json"),
        )
        # Remove pytest's variable, which a learner's kernel does not have.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(env=env | dict(environment or {}))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def send(self, code: str) -> str:
        """Start a cell without waiting for it. Return the id for `wait`."""
        return self.client.execute(code, store_history=True)

    def run(self, code: str, timeout: float = 180) -> Ran:
        return self.wait(self.send(code), timeout)

    def next_text(self, msg_id: str, timeout: float = 60) -> str:
        """Return the next text that the running cell prints."""
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            of_cell = message["parent_header"].get("msg_id") == msg_id
            if of_cell and message["msg_type"] == "stream":
                return message["content"]["text"]

    def wait_until_begun(self, msg_id: str, timeout: float = 60) -> None:
        """Wait until a cell has begun. Before that, ipykernel ignores the stop button."""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=timeout)
            except Empty:
                raise TimeoutError(f"the cell did not begin within {timeout} s") from None
            of_cell = message["parent_header"].get("msg_id") == msg_id
            if of_cell and message["msg_type"] == "execute_input":
                return

    def wait(self, msg_id: str, timeout: float = 180) -> Ran:
        start = time.monotonic()
        texts: list[str] = []
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=timeout)
            except Empty:
                raise TimeoutError(f"no end of the cell within {timeout} s:\n{texts}") from None
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    texts.append(content["text"])
                case "clear_output":  # a notebook clears the progress of a long cell
                    texts.clear()
                case "execute_result" | "display_data":
                    texts.append(content["data"].get("text/plain", ""))
                case "status" if content["execution_state"] == "idle":
                    break
        try:
            while (reply := self.client.get_shell_msg(timeout=timeout))["parent_header"].get(
                "msg_id"
            ) != msg_id:
                pass
        except Empty:
            raise TimeoutError(f"the kernel did not report the cell's end: {texts}") from None
        content = reply["content"]
        return Ran(
            content["status"],
            "".join(texts),
            content.get("ename", ""),
            without_escapes("\n".join(content.get("traceback", []))),
            time.monotonic() - start,
        )

    def interrupt(self) -> None:
        """Press the stop button."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """End the kernel at once, without a chance to clean up."""
        self._end(now=True)

    def shutdown(self) -> None:
        self._end()

    def _end(self, now: bool = False) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=now)
        self._folder.cleanup()
