"""Records presses of the notebook's stop button while ranks run, without interrupting parlab."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from IPython import get_ipython

GIVE_UP_SECONDS = 1.0  # how long to wait after another press of the stop button
REPEAT_SECONDS = 0.02  # between two tries to interrupt a cell whose code does not run yet


class CellInterrupts:
    """Handles presses of the stop button while a cell of the notebook runs its own code.

    By default, a press raises KeyboardInterrupt wherever Python is. If the cell's code has not
    begun or has just ended, this is a line of IPython or ipykernel, which then lose the press or
    never report the cell's end. So parlab repeats a press until the cell's code runs.
    """

    def __init__(self, kernel: Any) -> None:
        self._shell = kernel.shell
        self._cells = 0
        # A SimpleQueue, because a signal handler cannot safely use locks or start threads.
        self._early: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._repeat, name="parlab-stop-button", daemon=True).start()
        usual = kernel.pre_handler_hook

        def before_each_message() -> None:
            usual()
            self._cells += 1
            if kernel.get_parent()["header"]["msg_type"] == "execute_request":
                signal.signal(signal.SIGINT, self._press)

        kernel.pre_handler_hook = before_each_message
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._press)  # for the cell that runs now

    def _press(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt in the cell's code. Elsewhere, try again soon."""
        while frame is not None:
            if frame.f_globals is self._shell.user_global_ns:
                signal.default_int_handler(number, frame)
            frame = frame.f_back
        self._early.put(self._cells)

    def _repeat(self) -> None:
        """Repeat a press while the same cell runs. ipykernel ignores presses after a cell."""
        while True:
            cell = self._early.get()
            time.sleep(REPEAT_SECONDS)
            if cell == self._cells:
                os.kill(os.getpid(), signal.SIGINT)


_of_kernels: dict[int, CellInterrupts] = {}  # by the process


def keep_early_presses() -> None:
    """Install `CellInterrupts` once, if this is the main thread of a notebook's kernel."""
    kernel = getattr(get_ipython(), "kernel", None)
    is_main = threading.current_thread() is threading.main_thread()
    if kernel is not None and is_main and os.getpid() not in _of_kernels:
        _of_kernels[os.getpid()] = CellInterrupts(kernel)


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
        if not self.presses or not hasattr(get_ipython(), "kernel"):
            signal.signal(signal.SIGINT, self._before)
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
        """Wait until `is_done()` is True. Return its last result.

        Wait at most `seconds`, and at most `give_up` seconds after another press.
        """
        presses = len(self.presses)
        until = time.monotonic() + seconds
        while not is_done() and (left := until - time.monotonic()) > 0:
            self.wait_for_change(left)
            if len(self.presses) > presses:
                until = min(until, self.presses[presses] + give_up)
        return is_done()
