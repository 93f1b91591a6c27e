"""The part of MPI that labs use between checks, for nodes without mpi4py.

It uses torch.distributed, and supports objects, barriers, in-place sums and broadcasts, and splits.
Anything else raises Unavailable, and the cell that used it counts as skipped.
"""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from parlab_staff.gpu_check.stand_ins import Unavailable, refusing_module

Operation = Callable[[Any, Any], Any]
# Operations of `allreduce` by their names in MPI, and its other constants.
OPERATIONS = {"MAX": max, "MIN": min, "SUM": operator.add, "LAND": lambda a, b: a and b}
UNDEFINED, IN_PLACE = -32766, object()
CONSTANTS = {"UNDEFINED": UNDEFINED, "IN_PLACE": IN_PLACE, "COMM_TYPE_SHARED": 0, "COMM_NULL": None}


class Comm:
    """A communicator over a Gloo group, with the methods of mpi4py that labs call."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self.rank, self.size = group, group.rank(), group.size()

    def __getattr__(self, name: str) -> Any:
        raise Unavailable(f"comm.{name} needs MPI")

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def allgather(self, value: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.size
        with _disable_current_modes():  # an open ledger would count this as a call of torch
            dist.all_gather_object(everyone, value, group=self._group)
        return everyone

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        everyone = self.allgather(value)
        return everyone if self.rank == root else None

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        return self.allgather(value)[root]

    def allreduce(self, value: Any, op: Operation = operator.add) -> Any:
        return reduce(op, self.allgather(value))

    def Barrier(self) -> None:
        self.allgather(None)

    barrier = Barrier

    def Bcast(self, tensor: Any, root: int = 0) -> None:
        _tensor(tensor).copy_(self.bcast(_tensor(tensor), root))

    def Allreduce(self, given: Any, tensor: Any, op: Operation = operator.add) -> None:
        own = tensor if given is IN_PLACE else given
        _tensor(tensor).copy_(self.allreduce(_tensor(own), op))

    def Split(self, color: int = 0, key: int = 0) -> "Comm | None":
        everyone = self.allgather((color, key, dist.get_rank()))
        own_group = None
        for one in sorted({c for c, _, _ in everyone} - {UNDEFINED}):
            # torch requires that all ranks of the world create all groups in the same order.
            ranks = [r for c, _, r in sorted(everyone) if c == one]
            group = dist.new_group(ranks, backend="gloo", sort_ranks=False)
            own_group = Comm(group) if color == one else own_group
        return own_group

    def Split_type(self, split_type: int) -> "Comm | None":
        return self.Split(0, self.rank)  # all ranks are on one node

    def Free(self) -> None:
        """Do nothing: groups exist until the process ends."""


def _tensor(memory: Any) -> torch.Tensor:
    return memory if isinstance(memory, torch.Tensor) else torch.from_numpy(memory)


def install(topic: str, device: torch.device, group: dist.ProcessGroup) -> Comm:
    """Install the stand-ins that labs import. Collective; torch.distributed must have started.

    Args:
        topic: the lab's topic. Its checks need MPI, so only `show_values` is available.
        device: this rank's device.
        group: the labs' `group`.
    """
    comm = Comm(dist.new_group(backend="gloo"))

    def show_values(**values: Any) -> None:
        from IPython.display import JSON, display

        everyone = comm.allgather(values)
        if comm.rank == 0:
            display(JSON({name: [value[name] for value in everyone] for name in values}))

    members = {"COMM_WORLD": comm, "Intracomm": Comm, "Comm": Comm, **OPERATIONS, **CONSTANTS}
    members["Request"] = object  # for annotations
    mpi = refusing_module("mpi4py.MPI", "needs MPI", **members)
    refusing_module("mpi4py", "needs MPI", MPI=mpi)
    refusing_module(
        "parlab.rank",
        "needs MPI",
        comm=comm,
        rank=comm.rank,
        world_size=comm.size,
        device=device,
        group=group,
    )

    class WatchedComm:
        def __init__(self, *_: Any) -> None:
            raise Unavailable("Ledger.watch needs MPI")

    refusing_module("parlab.ledger.watched", "needs MPI", WatchedComm=WatchedComm)
    refusing_module(f"parlab.checks.{topic}", "needs MPI", show_values=show_values)
    return comm
