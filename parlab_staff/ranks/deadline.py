"""Frees this rank if its function takes too long, in the same ways as in a lab."""

import _thread
import contextlib
import sys
import threading

from parlab.rank.engine import freeing

GRACE_SECONDS = 1.0  # before the next, more drastic way to free a rank


class Deadline:
    """Frees this rank if a `with` block takes longer than `seconds`, and sets `passed`."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._seconds = seconds
        self._finished, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> "Deadline":
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._finished.set()

    def _wait(self) -> None:
        wait = self._seconds
        for free in (freeing.revoke, _thread.interrupt_main, _close_torch, _thread.interrupt_main):
            if self._finished.wait(wait):
                return
            wait = GRACE_SECONDS
            with self._lock, contextlib.suppress(Exception):
                if not self._finished.is_set():
                    self.passed = True
                    free()


def _close_torch() -> None:
    if groups := sys.modules.get("parlab.rank.torch_groups"):
        groups.close()
