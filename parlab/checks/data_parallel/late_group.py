"""A process group that works as late as it may, and writes down what it is asked.

A real network may be fast or slow. This one is as slow as the rules allow: an all-reduce happens
in `wait()`, not before. Whoever forgets to wait then always has the wrong gradients, and not only
on a bad day.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from parlab.rank.mpi_group import MPIGroup


@dataclass(frozen=True)
class Event:
    """Something that happened on this rank: `what` names a parameter, or counts all-reduces.

    kind: "ready" (a gradient is complete), "start" and "wait" (of an all-reduce), "backward ends".
    """

    kind: str
    what: Any = None
    bytes: int = 0
    address: int = 0


class LateWork(dist.Work):
    """The handle of an all-reduce that happens when it is waited for."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__()
        self._do: Callable[[], None] | None = do

    def wait(self, timeout: Any = None) -> bool:
        if self._do is not None:
            do, self._do = self._do, None
            do()
        return True


class LateGroup(dist.ProcessGroup):
    """All-reduce and broadcast over the ranks of `comm`, with `events` of what was asked."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self._inner = MPIGroup(comm)
        self.events: list[Event] = []
        self._started = 0

    def getBackendName(self) -> str:  # torch's name
        return "late"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> LateWork:
        number, tensor = self._started, tensors[0]
        self._started += 1
        self.events.append(Event("start", number, tensor.nbytes, tensor.data_ptr()))

        def do() -> None:
            self.events.append(Event("wait", number))
            self._inner.allreduce(tensors, options).wait()

        return LateWork(do)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:
        return self._inner.broadcast(tensors, options)

    def take_events(self) -> list[Event]:
        """The events since the last call; all-reduces are numbered from 0 again."""
        taken, self.events, self._started = self.events, [], 0
        return taken
