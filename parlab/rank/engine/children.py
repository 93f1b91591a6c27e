"""What processes that a cell forks must not inherit from this rank.

`multiprocessing` and workers of torch's data loaders start as copies of the rank's process. With
its handler of SIGTERM, they would answer `terminate()` by stopping the rank's event loop, and live.
"""

import faulthandler
import os
import signal
import threading
from typing import Any

from parlab.rank.engine.interrupts import is_ours


def install(shell: Any) -> None:
    """Give children of this process Python's own signal handlers, and end them with their cell."""
    engine = os.getpid()
    stop = signal.getsignal(signal.SIGTERM)  # ipyparallel's; a cell may set another one later

    before = threading.local()  # the signals that the forking thread blocks

    def block() -> None:
        # A signal that comes in the child before `reset` would be lost: it waits.
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def reset() -> None:
        if signal.getsignal(signal.SIGTERM) == stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if is_ours(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(-1)
        # The supervisor would take a child's stack for the rank's.
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.enable(file=2)
        unblock()

    def end_child(result: Any) -> None:
        """End a child of `os.fork` that came to its cell's end, or it would run the next cell."""
        if os.getpid() != engine:
            os._exit(0 if result.success else 1)

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)
    shell.events.register("post_run_cell", end_child)
