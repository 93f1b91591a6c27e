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


def _interrupt_cell(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in the notebook's code. Ignore a press when the cell has just ended.

    There, it would interrupt ipykernel before it reports the end, and the cell would never end.
    """
    shell = get_ipython()
    while frame is not None:
        if frame.f_globals is shell.user_global_ns:
            signal.default_int_handler(number, frame)
        frame = frame.f_back


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
        if not self._in_main:
            return
        if not hasattr(get_ipython(), "kernel"):
            signal.signal(signal.SIGINT, self._before)
        elif not self.presses:
            usual = self._before is signal.default_int_handler
            signal.signal(signal.SIGINT, _interrupt_cell if usual else self._before)
        # Users often press twice. A second press must not interrupt the end of the cell, after
        # which ipykernel sets its own handler again.

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
