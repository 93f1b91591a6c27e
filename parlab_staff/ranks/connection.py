"""The connection between a pool and a rank, and the file with the stack of a stuck rank."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any


def stack_file(folder: Path, rank: int) -> Path:
    """Return the file to which a rank writes its stack when its time is up.

    Each rank has its own file, because the lines of several ranks would mix in one file.
    """
    return folder / f"stack-{rank}"


class Connection:
    """The connection to one rank. A message is one line of JSON."""

    def __init__(self, to_rank: socket.socket) -> None:
        to_rank.settimeout(None)
        self.socket, self._lines = to_rank, to_rank.makefile("rb")
        self.hello = self.receive() or {}  # its rank and process

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the rank has ended."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self._lines.readline())
        return None

    def close_sending(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def wait_for_end(self, deadline: float) -> bool:
        """Wait. Return True if the rank's process ends before the deadline."""
        self.socket.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            while self.socket.recv(2**16):
                pass
        except OSError as error:
            return not isinstance(error, TimeoutError)
        return True

    def close(self) -> None:
        self._lines.close()
        self.socket.close()
