"""Closes the kernel's connections to the ranks in forked children of the kernel.

A child (`os.fork`, `multiprocessing`) inherits these connections. If it kept them open, the ranks
would not notice that the kernel has ended. If it shut them down, the ranks would end too early.
"""

import contextlib
import os
import weakref
from typing import Protocol


class _File(Protocol):
    def fileno(self) -> int: ...


_files: weakref.WeakSet[_File] = weakref.WeakSet()


def close_in_children(file: _File) -> None:
    """Close this file or socket in each process that is forked later. It stays open here."""
    _files.add(file)


def _close() -> None:
    for file in list(_files):
        with contextlib.suppress(OSError, ValueError):
            # Without a flush or a shutdown, the process at the other end notices nothing.
            os.close(file.fileno())


os.register_at_fork(after_in_child=_close)
