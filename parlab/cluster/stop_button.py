"""Records presses of the notebook's stop button while ranks run, without interrupting parlab."""

import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

from IPython import get_ipython

GIVE_UP_SECONDS = 1.0  # how long to wait after another press of the stop button


class StopButton:
    """Context manager that records SIGINT and wakes the waiting thread.

    Otherwise, Python would raise KeyboardInterrupt at an arbitrary line.
    """

    def __init__(self) -> None:
        self.presses: list[float] = []  # time.monotonic() of each
        # A SimpleQueue, because a signal handler cannot safely set an event.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._in_main = threading.current_thread() is threading.main_thread()
        if self._in_main:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        # Users often press twice. A second press must not interrupt the end of the cell, after
        # which ipykernel sets its own handler again.
        ends_soon = self.presses and hasattr(get_ipython(), "kernel")
        if self._in_main and not ends_soon:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.presses.append(time.monotonic())
        self.notify()

    def notify(self) -> None:
        """Wake the waiting thread. Can be called from any thread and from a signal handler."""
        self._changes.put(None)

    def wait_for_change(self, seconds: float) -> bool:
        """Wait for `notify` or a press, at most `seconds`. Return True if there was one."""
        try:
            self._changes.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        return True

    def wait_for(
        self, is_done: Callable[[], bool], seconds: float, give_up: float = GIVE_UP_SECONDS
    ) -> bool:
        """Wait until `is_done()`, and return whether it is.

        Wait at most `seconds`, and at most `give_up` seconds after another press.
        """
        presses = len(self.presses)
        until = time.monotonic() + seconds
        while not is_done() and (left := until - time.monotonic()) > 0:
            self.wait_for_change(left)
            if len(self.presses) > presses:
                until = min(until, self.presses[presses] + give_up)
        return is_done()
