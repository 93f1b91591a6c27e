"""What a child of the kernel's process inherits, and must let go.

A child (`os.fork`, `multiprocessing`) holds the kernel's connections to the ranks too. It must not
keep them open when the kernel ends, since that is how the ranks notice; nor tell the ranks to end
when it ends itself.
"""

import contextlib
import os
import weakref
from typing import Protocol


class _File(Protocol):
    def fileno(self) -> int: ...


_files: weakref.WeakSet[_File] = weakref.WeakSet()


def close_in_children(file: _File) -> None:
    """Close this file or socket in each process forked from here on; it stays open here."""
    _files.add(file)


def _close() -> None:
    for file in list(_files):
        with contextlib.suppress(OSError, ValueError):
            # What is at the other end notices nothing: no flush, no shutdown.
            os.close(file.fileno())


os.register_at_fork(after_in_child=_close)
