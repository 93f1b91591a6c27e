"""Writes the main thread's stack, from another thread.

faulthandler could do this at any time, when it receives a signal. But it reads frames that the
thread may be changing. In a program that often calls Python from C, as `print` does in a notebook,
this ended the process about once in a hundred times. This module holds Python's lock, so frames do
not change.
"""

import os
import sys
import threading

MAX_FRAMES = 1_000


def write(descriptor: int) -> None:
    """Write the main thread's stack in faulthandler's format, with the innermost frame first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = ["Stack (most recent call first):"]
    while frame is not None and len(lines) <= MAX_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno or 0} in {code.co_name}')
        frame = frame.f_back
    if frame is not None:
        lines.append("  ...")
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    while text:
        text = text[os.write(descriptor, text) :]
