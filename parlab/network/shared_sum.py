"""Sums over ranks through memory that they share, in which no rank spins."""

from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.network.clock import nap, now
from parlab.runtime.shared_memory import SharedNumbers

# Numbers (float64) that each rank lays out at once: what stays in a processor's caches.
_ROOM = 2**17


class MemoryComm:
    """A communicator as `comm`, whose sums of floats go through memory; the rest is `comm`'s.

    A rank that waits in MPI keeps a core busy, or yields it to whatever else computes, for a time
    slice: beside ranks that compute, the exchange of a few bytes then takes milliseconds. Here
    ranks that wait are asleep. Sums are taken in the order of the ranks. Making one is collective.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._steps = SharedNumbers(comm, comm.size)  # that each rank has done
        self._laid_out = SharedNumbers(comm, comm.size * _ROOM)
        self._sums = SharedNumbers(comm, _ROOM)
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Allreduce(self, send: Any, receive: list[Any], op: MPI.Op) -> None:
        """As a communicator's. Raises MPI.Exception when that is revoked."""
        memory, _, kind = receive
        if send != MPI.IN_PLACE or op != MPI.SUM or kind not in (MPI.FLOAT, MPI.DOUBLE):
            self._comm.Allreduce(send, receive, op)
            return
        numbers = np.frombuffer(memory, kind.typechar)
        laid_out = np.frombuffer(self._laid_out.numbers, numbers.dtype).reshape(self.size, -1)
        sums = np.frombuffer(self._sums.numbers, numbers.dtype)
        for start in range(0, len(numbers), len(sums)):
            piece = numbers[start : start + len(sums)]
            laid_out[self.rank, : len(piece)] = piece
            self._wait_for_all()
            first, last = (len(piece) * rank // self.size for rank in (self.rank, self.rank + 1))
            laid_out[:, first:last].sum(axis=0, out=sums[first:last])
            self._wait_for_all()
            piece[:] = sums[: len(piece)]

    def _wait_for_all(self) -> None:
        """Sleep until all ranks have come here as often as this one."""
        begun = now()
        self._step += 1
        with self._steps.locked() as steps:
            steps[self.rank] = self._step
        while min(self._steps.numbers) < self._step:
            if self._comm.Is_revoked():
                raise MPI.Exception(MPI.ERR_REVOKED)
            nap(begun)
