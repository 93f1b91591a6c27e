"""Keeps a cell that prints without end from being heard long after it was ended.

Each flush sends a message to the notebook's kernel. A loop of `print(…, flush=True)` sends far more
of them than the kernel can read: those that wait there would be read first, after the deadline.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from ipykernel.iostream import OutStream

MOST_FLUSHES = 100  # in a second; what is written goes out every 0.2 s without any


class Flushes:
    """Sends at once for the first flushes of a second; what the others had to send goes soon."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self.begin()

    def begin(self) -> None:
        """From here on flushes are counted anew."""
        self._since, self._count = time.monotonic(), 0

    def __call__(self) -> None:
        if time.monotonic() > self._since + 1:
            self.begin()
        self._count += 1
        if self._count <= MOST_FLUSHES:
            self._flush()


def install(shell: Any) -> None:
    """Count the flushes of each cell of `shell`; all that it printed is sent as it ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, OutStream):
            flushes = Flushes(stream.flush)
            stream.flush = flushes
            # ipykernel flushes after this, and before it says that the cell has ended.
            shell.events.register("post_run_cell", lambda *_, of=flushes: of.begin())
