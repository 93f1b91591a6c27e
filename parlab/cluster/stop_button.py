"""The notebook's stop button, while ranks are at work: noted, and never in the middle of things."""

import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

from IPython import get_ipython

GIVE_UP_SECONDS = 1.0  # from one more press of the stop button


class StopButton:
    """Within `with`, a press (SIGINT) is noted and wakes whoever waits here; Python would raise
    KeyboardInterrupt at whatever line it is.
    """

    def __init__(self) -> None:
        self.presses: list[float] = []  # time.monotonic() of each
        # A queue and not an event: one may put into it from a signal's handler.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._in_main = threading.current_thread() is threading.main_thread()
        if self._in_main:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever presses once presses twice. ipykernel sets its own handler again as the cell ends;
        # until then a second press would only disturb it.
        ends_soon = self.presses and hasattr(get_ipython(), "kernel")
        if self._in_main and not ends_soon:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.presses.append(time.monotonic())
        self.notify()

    def notify(self) -> None:
        """Wake the thread that waits; from any thread, and from a signal's handler."""
        self._changes.put(None)

    def wait_for_change(self, seconds: float) -> bool:
        """Wait until `notify` or a press, at most `seconds`; whether there was one."""
        try:
            self._changes.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        return True

    def wait_for(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait until `is_done()`, at most `seconds`, and a second from one more press."""
        presses = len(self.presses)
        until = time.monotonic() + seconds
        while not is_done() and (left := until - time.monotonic()) > 0:
            self.wait_for_change(left)
            if len(self.presses) > presses:
                until = min(until, self.presses[presses] + GIVE_UP_SECONDS)
        return is_done()
