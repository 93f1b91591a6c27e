"""Resets signal handlers and more in processes that a cell forks.

Processes of `multiprocessing` and workers of torch's data loaders start as copies of the rank's
process.
"""

import faulthandler
import os
import signal
import threading
from typing import Any

from parlab.rank.engine.interrupts import is_ours


def install(shell: Any) -> None:
    """Set Python's signal handlers in children of this process, and end them with their cell."""
    engine = os.getpid()
    before = threading.local()  # the signals that the forking thread blocks

    def block() -> None:
        # A signal that reaches the child before `reset` would be lost, so delay it.
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def reset() -> None:
        if is_ours(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(-1)
        # Otherwise, the supervisor would receive a child's stack as the rank's.
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.enable(file=2)
        unblock()

    def end_child(result: Any) -> None:
        """End a child of `os.fork` at the end of its cell. Otherwise, it would run later cells."""
        if os.getpid() != engine:
            os._exit(0 if result.success else 1)

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)
    shell.events.register("post_run_cell", end_child)
