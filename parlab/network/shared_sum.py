"""Sums over ranks through shared memory, in which waiting ranks sleep."""

from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.network.clock import now, sleep_briefly
from parlab.runtime.shared_memory import SharedNumbers

# The number of float64 values that each rank copies at once, so that they stay in the CPU's caches.
_ROOM = 2**17


class MemoryComm:
    """A communicator like `comm` that sums floats through shared memory.

    A rank that waits in MPI keeps a core busy, or yields it to other processes for a time slice. If
    other ranks compute at the same time, exchanging a few bytes then takes milliseconds. Here,
    waiting ranks sleep. Sums are computed in the order of the ranks. Making it is collective.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._steps = SharedNumbers(comm, comm.size)  # number of steps that each rank has done
        self._inputs = SharedNumbers(comm, comm.size * _ROOM)
        self._sums = SharedNumbers(comm, _ROOM)
        self._lengths = SharedNumbers(comm, comm.size)  # of the numbers that each rank passes
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Allreduce(self, send: Any, receive: list[Any], op: MPI.Op) -> None:
        """Reduce like MPI's `Allreduce`.

        Raises:
            MPI.Exception: the communicator is revoked.
            ValueError: the ranks pass different numbers of elements, on all ranks.
        """
        memory, _, kind = receive
        if send != MPI.IN_PLACE or op != MPI.SUM or kind not in (MPI.FLOAT, MPI.DOUBLE):
            self._comm.Allreduce(send, receive, op)
            return
        numbers = np.frombuffer(memory, kind.typechar)
        inputs = np.frombuffer(self._inputs.numbers, numbers.dtype).reshape(self.size, -1)
        sums = np.frombuffer(self._sums.numbers, numbers.dtype)
        self._lengths.numbers[self.rank] = len(numbers)
        for start in range(0, max(len(numbers), 1), len(sums)):
            piece = numbers[start : start + len(sums)]
            inputs[self.rank, : len(piece)] = piece
            self._wait_for_all()
            if len(lengths := set(self._lengths.numbers)) > 1:
                self._wait_for_all()  # until all ranks have compared
                sizes = ", ".join(f"{length:.0f}" for length in sorted(lengths))
                raise ValueError(f"the ranks pass tensors of different sizes: {sizes} elements")
            first, last = (len(piece) * rank // self.size for rank in (self.rank, self.rank + 1))
            inputs[:, first:last].sum(axis=0, out=sums[first:last])
            self._wait_for_all()
            piece[:] = sums[: len(piece)]

    def _wait_for_all(self) -> None:
        """Sleep until all ranks have called this as often as this rank."""
        started = now()
        self._step += 1
        with self._steps.locked() as steps:
            steps[self.rank] = self._step
        while min(self._steps.numbers) < self._step:
            if self._comm.Is_revoked():
                raise MPI.Exception(MPI.ERR_REVOKED)
            sleep_briefly(started)
