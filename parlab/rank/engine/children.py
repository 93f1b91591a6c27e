"""What processes that a cell forks must not inherit from this rank.

`multiprocessing` and workers of torch's data loaders start as copies of the rank's process. With its
handler of SIGTERM, they would answer `terminate()` by stopping the rank's event loop, and live on.
"""

import contextlib
import faulthandler
import os
import signal
from typing import Any

from parlab.rank.engine.interrupts import is_ours


def install(shell: Any) -> None:
    """Give children of this process Python's own signal handlers, and end them with their cell."""
    engine = os.getpid()
    stop = signal.getsignal(signal.SIGTERM)  # ipyparallel's; a cell may set another one later

    def reset() -> None:
        if signal.getsignal(signal.SIGTERM) == stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if is_ours(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(ValueError):  # forked by another thread than the main one
            signal.set_wakeup_fd(-1)
        # The supervisor would take a child's stack for the rank's.
        faulthandler.unregister(signal.SIGUSR1)
        faulthandler.enable(file=2)

    def end_child(result: Any) -> None:
        """End a child of `os.fork` that came to its cell's end, or it would run the next cell."""
        if os.getpid() != engine:
            os._exit(0 if result.success else 1)

    os.register_at_fork(after_in_child=reset)
    shell.events.register("post_run_cell", end_child)
