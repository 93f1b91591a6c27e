"""Limits the output of a cell.

The notebook's kernel reads output more slowly than ranks can print it. Without a limit, the output
of a cell that prints in an endless loop would delay the output of later cells.
"""

import contextlib
import sys
import time
from typing import Any

from ipykernel.iostream import OutStream

from parlab.rank.engine.cell_magics import after_cell
from parlab.runtime.rank_names import LEFT_OUT

MAX_FLUSHES = 100  # per second; without a flush, output is sent every 0.2 s
# Limits for a cell: the number of first and of last characters that are kept on each stream, and
# the number of displays. A browser that receives thousands of pictures stops responding.
MAX_CHARACTERS, LAST_CHARACTERS = 12_000_000, 10_000
MAX_DISPLAYS = 100


class Printing:
    """Sends the first and last characters that a cell prints on a stream, and counts the others.

    The first flushes of each second send output at once. Output of later flushes is delayed.
    """

    def __init__(self, name: str) -> None:
        self._name, self._stream = name, getattr(sys, name)
        self._write, self._flush = self._stream.write, self._stream.flush
        self._stream.write, self._stream.flush = self.write, self.flush
        self._stream.close = self.flush  # if it were really closed, no cell could end any more
        self._reset()

    def _reset(self) -> None:
        self._since, self._flushes, self._room = time.monotonic(), 0, MAX_CHARACTERS
        self._last = ""  # the last characters beyond the limit

    def write(self, text: str) -> int:
        if self._room > 0:
            self._write(text[: self._room])
        self._room -= len(text)
        if self._room < 0:
            self._last = (self._last + text[self._room :])[-LAST_CHARACTERS:]
        return len(text)

    def flush(self) -> None:
        if time.monotonic() > self._since + 1:
            self._since, self._flushes = time.monotonic(), 0
        self._flushes += 1
        if self._flushes <= MAX_FLUSHES:
            self._flush()

    def end_cell(self) -> None:
        """Write how many characters were left out, and the last ones. ipykernel then sends them.

        If the cell replaced this stream, put it back. Otherwise, the output of later cells would be
        hidden, or they could not end.
        """
        if getattr(sys, self._name) is not self._stream:
            setattr(sys, self._name, self._stream)
            self._write(f"(sys.{self._name} was restored after this cell)\n")
        if (left_out := -self._room - len(self._last)) > 0:
            self._write(f"\n… {left_out:,}{LEFT_OUT} …\n")
        self._write(self._last)
        self._reset()


class Displays:
    """Sends the first displays of a cell, and counts the others.

    Requests to clear or replace displays are not sent, because a cell shows everything in order.
    """

    def __init__(self, publisher: Any) -> None:
        self._publish, self._count = publisher.publish, 0
        publisher.publish, publisher.clear_output = self.publish, self.clear_output

    def publish(self, data: dict, metadata: dict | None = None, **options: Any) -> None:
        if options.get("update"):
            return
        self._count += 1
        if self._count <= MAX_DISPLAYS:
            self._publish(data, metadata, **options)

    def clear_output(self, wait: bool = False) -> None:
        pass

    def end_cell(self) -> None:
        if (more := self._count - MAX_DISPLAYS) > 0:
            self._publish({"text/plain": f"… {more:,} more displays of this cell left out …"})
        self._count = 0


def install(shell: Any) -> None:
    """Limit what each cell of `shell` sends, and keep none of it on this rank.

    IPython 9 would keep everything that cells print and display in its history, without limits.
    """
    shell._tee = lambda channel: contextlib.nullcontext()
    streams = [name for name in ("stdout", "stderr") if isinstance(getattr(sys, name), OutStream)]
    for limited in (*map(Printing, streams), Displays(shell.display_pub)):
        after_cell(shell, limited.end_cell)
    after_cell(shell, getattr(shell.history_manager, "outputs", {}).clear)
