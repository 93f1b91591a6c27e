"""Interrupts of a rank's cell, and which of them cut an import off.

Python forgets a module whose import was cut off, but not what its submodules and its C++ have done
by then: imported again, torch fails, or ends the process. A rank that was stopped there says so.
"""

import ctypes
import signal
import sys
import threading
from types import FrameType
from typing import Any

from parlab.rank.engine.tracebacks import is_cell
from parlab.runtime.library_files import is_library

_cut_off: dict[str, None] = {}  # modules whose import an interrupt ended


def install(kernel: Any) -> None:
    """Let interrupts of the cells that `kernel` (ipykernel's) runs come through here."""

    def pre_handler_hook() -> None:
        kernel.saved_sigint_handler = signal.signal(signal.SIGINT, _interrupt)

    kernel.pre_handler_hook = pre_handler_hook


def is_ours(handler: object) -> bool:
    """Return whether this is the handler of cells' interrupts."""
    return handler is _interrupt


def cut_off() -> list[str]:
    """The modules whose import was ended by an interrupt, in this process."""
    return list(_cut_off)


def interrupt() -> None:
    """Interrupt the cell, as Ctrl-C does; from another thread."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:  # which would end the process
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def interrupt_taken() -> None:
    """Interrupt a cell that took Ctrl-C's signal for itself, between two steps of its Python."""
    main = threading.main_thread().ident or 0
    taken = signal.getsignal(signal.SIGINT) is not _interrupt
    if taken and _in_cell(sys._current_frames().get(main)):
        raised = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), raised)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _in_cell(frame):
        return  # it came too late: the cell has ended, or is about to say how
    if module := importing(frame):
        _cut_off[module] = None
    raise KeyboardInterrupt


def _in_cell(frame: FrameType | None) -> bool:
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def importing(frame: FrameType | None) -> str | None:
    """The module that a cell is importing at `frame`: the outermost, as the cell names it.

    None inside a file of the learner's that is being imported: Python can import that again.
    """
    module = None
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and "importlib" in frame.f_code.co_filename:
            module = frame.f_locals.get("name", module)
        elif module is None and not is_library(frame.f_code.co_filename):
            return None
        frame = frame.f_back
    return module
