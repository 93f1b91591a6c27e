"""Memory that all ranks of a machine share, with a lock."""

import contextlib
import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator

from mpi4py import MPI

from parlab.runtime.paths import MEMORY

_BYTES = 8  # of a float64


class SharedNumbers:
    """An array of `count` float64 numbers, initially 0. Creating it is collective over `comm`.

    It is in a file whose name is deleted at once, so the file disappears when the ranks end, even
    if they crash. Raises ValueError, on all ranks, if the ranks are on several machines.
    """

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        together = node.size == comm.size
        node.Free()
        if not together:
            raise ValueError("the ranks share no memory: start them on one machine")
        path = None
        if comm.rank == 0:
            file, path = tempfile.mkstemp(prefix="parlab-shared-", dir=MEMORY)
            os.ftruncate(file, count * _BYTES)
            os.close(file)
        path = comm.bcast(path)
        # Each rank opens the file, because processes that inherit an open file share its lock.
        self._file = os.open(path, os.O_RDWR)
        comm.Barrier()
        if comm.rank == 0:
            os.unlink(path)
        self._memory = mmap.mmap(self._file, count * _BYTES)
        self._threads = threading.Lock()
        self.numbers = memoryview(self._memory).cast("d")

    @contextlib.contextmanager
    def locked(self) -> Iterator[memoryview]:
        """Lock the numbers for this thread of this rank. If the rank dies, the lock is released."""
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield self.numbers
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            os.close(self._file)
