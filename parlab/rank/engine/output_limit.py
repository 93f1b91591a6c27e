"""Keeps a cell that prints or shows without end from being heard long after it was ended.

All that a rank sends is read by the notebook's kernel, which is slower than ranks that print. What
waits there would be read first, before what later cells print.
"""

import sys
import time
from typing import Any

from ipykernel.iostream import OutStream

from parlab.rank.engine.cell_magics import after_cell
from parlab.runtime.rank_names import LEFT_OUT

MOST_FLUSHES = 100  # in a second; what is written goes out every 0.2 s without any
# Of a cell: characters on each stream, of which the last are kept as well; and displays, since a
# browser that is sent thousands of pictures stops answering.
MOST_CHARACTERS, LAST_CHARACTERS = 12_000_000, 10_000
MOST_DISPLAYS = 100


class Printing:
    """What a cell prints on one stream: its first characters and its last; others are counted.

    The first flushes of a second send at once; what the others had to send goes soon.
    """

    def __init__(self, name: str) -> None:
        self._name, self._stream = name, getattr(sys, name)
        self._write, self._flush = self._stream.write, self._stream.flush
        self._stream.write, self._stream.flush = self.write, self.flush
        self._stream.close = self.flush  # closed, no cell could end any more
        self._begin()

    def _begin(self) -> None:
        self._since, self._flushes, self._room = time.monotonic(), 0, MOST_CHARACTERS
        self._last = ""  # of what there was no room for

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
        if self._flushes <= MOST_FLUSHES:
            self._flush()

    def end_cell(self) -> None:
        """Tell of what was left out; ipykernel sends all that waits before the cell has ended.

        A cell that put another stream in this one's place, and left it there, hid all that later
        cells print, or kept them from ending.
        """
        if getattr(sys, self._name) is not self._stream:
            setattr(sys, self._name, self._stream)
            self._write(f"(sys.{self._name} is what it was before this cell)\n")
        if (left_out := -self._room - len(self._last)) > 0:
            self._write(f"\n… {left_out:,}{LEFT_OUT} …\n")
        self._write(self._last)
        self._begin()


class Displays:
    """What a cell shows beside its text: the first; the others are counted.

    What clears or replaces something is not sent: a rank cell shows all, in its order.
    """

    def __init__(self, publisher: Any) -> None:
        self._publish, self._count = publisher.publish, 0
        publisher.publish, publisher.clear_output = self.publish, self.clear_output

    def publish(self, data: dict, metadata: dict | None = None, **options: Any) -> None:
        if options.get("update"):
            return
        self._count += 1
        if self._count <= MOST_DISPLAYS:
            self._publish(data, metadata, **options)

    def clear_output(self, wait: bool = False) -> None:
        pass

    def end_cell(self) -> None:
        if (more := self._count - MOST_DISPLAYS) > 0:
            self._publish({"text/plain": f"… {more:,} more displays of this cell left out …"})
        self._count = 0


def install(shell: Any) -> None:
    """Bound what each cell of `shell` sends."""
    streams = [name for name in ("stdout", "stderr") if isinstance(getattr(sys, name), OutStream)]
    for bound in (*map(Printing, streams), Displays(shell.display_pub)):
        after_cell(shell, bound.end_cell)
