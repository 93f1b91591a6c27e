"""Gloo for ranks without MPI, which sends CUDA tensors through the host's memory.

Gloo itself cannot send them, and NCCL does not allow ranks to share a GPU.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from parlab.runtime.torch_mpi.named import NamedGroup
from parlab.runtime.torch_mpi.staging import Staging, through_host

BACKEND = "staged_gloo"

# Methods by their names in torch.distributed, in 2.13 and earlier: the name in Gloo, the positions
# of the arguments that it writes to, and the positions of those that it sends.
_METHODS: dict[str, tuple[str, list[int], list[int]]] = {
    "allreduce": ("allreduce", [0], [0]),
    "allreduce_coalesced": ("allreduce_coalesced", [0], [0]),
    "reduce": ("reduce", [0], [0]),
    "broadcast": ("broadcast", [0], [0]),
    "reduce_scatter": ("reduce_scatter", [0], [1]),
    "reduce_scatter_single": ("_reduce_scatter_base", [0], [1]),
    "_reduce_scatter_base": ("_reduce_scatter_base", [0], [1]),
    "gather": ("gather", [0], [1]),
    "scatter": ("scatter", [0], [1]),
    "allgather": ("allgather", [0], [1]),
    "allgather_coalesced": ("allgather_coalesced", [0], [1]),
    "all_gather_single": ("_allgather_base", [0], [1]),
    "_allgather_base": ("_allgather_base", [0], [1]),
    "alltoall": ("alltoall", [0], [1]),
    "all_to_all_single": ("alltoall_base", [0], [1]),
    "alltoall_base": ("alltoall_base", [0], [1]),
    "send": ("send", [], [0]),
    "recv": ("recv", [0], []),
    "recv_anysource": ("recv_anysource", [0], []),
    "barrier": ("barrier", [], []),
}


class StagedWork(dist.Work):
    """An operation of Gloo. `wait()` copies the received data to the GPU."""

    def __init__(self, real: dist.Work, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._real, self._tensors = real, tensors
        self._staging: Staging | None = None

    def deliver(self, staging: Staging) -> None:
        self._staging = staging
        self._tensors = [staging.original(tensor) for tensor in self._tensors]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._real.wait(timeout) if timeout else self._real.wait()
        if self._staging is not None:
            staging, self._staging = self._staging, None
            staging.copy_back()
        return True

    def is_completed(self) -> bool:
        return self._real.is_completed() and self.wait()

    def is_success(self) -> bool:
        return self._real.is_success()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        """Wait, and return a completed future."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _source_rank(self) -> Any:  # torch.distributed.recv calls it by this name
        return self._real._source_rank()


class StagedGloo(NamedGroup):
    """A process group over Gloo that also accepts CUDA tensors."""

    backend_name = BACKEND

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _method(gloo_name: str, receives: list[int], sends: list[int]) -> Callable:
    @through_host(receives=receives, sends=sends)
    def call(self: StagedGloo, *arguments: Any, **options: Any) -> StagedWork:
        real = getattr(self.gloo, gloo_name)(*arguments, **options)
        return StagedWork(real, _flat(arguments[0]) if arguments and receives else [])

    return call


for _name, _of in _METHODS.items():
    setattr(StagedGloo, _name, _method(*_of))


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)]


def register() -> None:
    """Register `backend="staged_gloo"` with torch.distributed."""
    dist.Backend.register_backend(BACKEND, StagedGloo, devices=["cpu", "cuda"])
