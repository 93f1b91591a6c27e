"""Memory and a lock that all ranks of a machine share."""

import contextlib
import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator

from mpi4py import MPI

_BYTES = 8  # of a float64
# Files there are memory alone: elsewhere, what is written goes to a disk in the end.
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class SharedNumbers:
    """`count` numbers (float64), zero at first. Making them is collective over `comm`.

    They live in a file that has lost its name, so nothing is left of it when the ranks end,
    however they do. Raises ValueError, on all ranks, where they are on several machines.
    """

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        together = node.size == comm.size
        node.Free()
        if not together:
            raise ValueError("the ranks share no memory: start them on one machine")
        path = None
        if comm.rank == 0:
            file, path = tempfile.mkstemp(prefix="parlab-shared-", dir=_MEMORY)
            os.ftruncate(file, count * _BYTES)
            os.close(file)
        path = comm.bcast(path)
        # Opened by each rank: a lock on a file belongs to whoever opened it.
        self._file = os.open(path, os.O_RDWR)
        comm.Barrier()
        if comm.rank == 0:
            os.unlink(path)
        self._memory = mmap.mmap(self._file, count * _BYTES)
        self._threads = threading.Lock()
        self.numbers = memoryview(self._memory).cast("d")

    @contextlib.contextmanager
    def locked(self) -> Iterator[memoryview]:
        """The numbers, for this thread of this rank alone. A rank that dies lets go of them."""
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield self.numbers
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            os.close(self._file)
