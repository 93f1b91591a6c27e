"""Where the main thread is, told from a thread beside it.

faulthandler's signal tells it too, whatever the thread does: but it reads frames that the thread
may be changing, and where a program calls Python from C all the time (as `print` does in a
notebook) it ends the process, once in some hundred times. With Python's lock held nothing changes.
"""

import os
import sys
import threading

MOST_FRAMES = 1_000


def write(descriptor: int) -> None:
    """Write the main thread's stack as faulthandler would, its innermost frame first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = ["Stack (most recent call first):"]
    while frame is not None and len(lines) <= MOST_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno or 0} in {code.co_name}')
        frame = frame.f_back
    if frame is not None:
        lines.append("  ...")
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    while text:
        text = text[os.write(descriptor, text) :]
