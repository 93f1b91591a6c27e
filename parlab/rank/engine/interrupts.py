"""Interrupts a rank's cell, and records whether this interrupted an import.

Python forgets a module whose import was interrupted, but its submodules and its C++ code keep their
state. If torch is then imported again, the import fails or ends the process. The kernel replaces
ranks that report an interrupted import.
"""

import signal
import threading
from types import FrameType
from typing import Any

from parlab.rank.engine.tracebacks import is_cell
from parlab.runtime.library_files import is_library

# Do not use SIGINT, because a cell may set its own handler for it, which remains until the rank has
# sent its answer. If it raised an error after the cell, the answer or the rank would be lost.
# A process without a handler ignores SIGURG.
SIGNAL = signal.SIGURG

_interrupted_imports: dict[str, None] = {}  # modules whose import an interrupt ended


def install(kernel: Any) -> None:
    """Handle interrupts of the cells that `kernel` (ipykernel's) runs. SIGTERM ends this process.

    ipyparallel's handler would let a cell continue, and sometimes lose the end of its output.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def pre_handler_hook() -> None:
        kernel.saved_sigint_handler = signal.signal(signal.SIGINT, _interrupt)
        signal.signal(SIGNAL, _interrupt)

    kernel.pre_handler_hook = pre_handler_hook


def is_ours(handler: object) -> bool:
    """Return True if this is the handler that `install` sets."""
    return handler is _interrupt


def interrupted_imports() -> list[str]:
    """Return the modules whose import was interrupted in this process."""
    return list(_interrupted_imports)


def interrupt() -> None:
    """Raise KeyboardInterrupt in the cell. Call this from another thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _in_cell(frame):
        return  # too late: the cell has ended
    if module := importing(frame):
        _interrupted_imports[module] = None
    raise KeyboardInterrupt


def _in_cell(frame: FrameType | None) -> bool:
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def importing(frame: FrameType | None) -> str | None:
    """Return the outermost module that a cell is importing at `frame`, or None.

    Return None inside a learner's own file, which Python can import again.
    """
    module = None
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and "importlib" in frame.f_code.co_filename:
            module = frame.f_locals.get("name", module)
        elif module is None and not is_library(frame.f_code.co_filename):
            return None
        frame = frame.f_back
    return module
