"""The Work objects that operations of the mpi4py group return."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from parlab.runtime.torch_mpi.staging import Staging

NO_TIMEOUT = timedelta(0)
_POLL_SECONDS = 0.0002


class CompletedWork(dist.Work):
    """An operation that was complete when its call returned."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def deliver(self, staging: Staging) -> None:
        """Copy the data from the host to the caller's tensors on the GPU."""
        staging.copy_back()
        self._tensors = [staging.original(tensor) for tensor in self._tensors]

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        """Return a future that is done. Its value is the list of tensors."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class PointToPointWork(dist.Work):
    """A send or receive that may not be complete. `isend` and `irecv` return it.

    Args:
        comm: the communicator of the messages.
        requests: MPI's requests, one for each piece of the tensor.
        memory: the tensor that MPI reads or writes, which must be kept until the end.
        tensor: the caller's tensor, which `result` returns.
        on_arrival: called once when the messages are complete.
        ended: called with this object when MPI no longer uses the memory.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        requests: list[MPI.Request],
        memory: torch.Tensor,
        tensor: torch.Tensor,
        on_arrival: Callable[[], None] | None = None,
        ended: Callable[["PointToPointWork"], None] | None = None,
    ) -> None:
        super().__init__()
        self.comm = comm
        self._requests = requests
        self._memory = memory
        self._tensor = tensor
        self._on_arrival = on_arrival
        self._ended = ended
        self._status = MPI.Status()
        self._error: MPI.Exception | None = None

    def deliver(self, staging: Staging) -> None:
        """Copy the data to the caller's tensor on the GPU when it has arrived on the host."""
        arrived = self._on_arrival

        def finish() -> None:
            if arrived is not None:
                arrived()
            staging.copy_back()

        self._tensor, self._on_arrival = staging.original(self._tensor), finish

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until the memory may be used again.

        Raises RuntimeError after `timeout` (by default, there is none), and errors of MPI as
        MPI.Exception.
        """
        if self._error is not None:
            raise self._error
        if timeout > NO_TIMEOUT:
            self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
        while self._requests:
            # Block in MPI, not in Python, so that revoking the communicator ends the wait.
            self._attempt(self._requests[0].Wait)
            self._requests.pop(0)
        self._arrived()
        return True

    def _wait_until(self, deadline: float, timeout: timedelta) -> None:
        while not self.is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no matching send or receive within {timeout}")
            time.sleep(_POLL_SECONDS)

    def is_completed(self) -> bool:
        while self._requests:
            if not self._attempt(self._requests[0].Test):
                return False
            self._requests.pop(0)
        self._arrived()
        return True

    def _attempt(self, test: Callable[[MPI.Status], bool]) -> bool:
        try:
            return test(self._status)
        except MPI.Exception as error:
            self._requests.clear()
            self._error = error
            self._release()
            raise

    def _arrived(self) -> None:
        if self._on_arrival is not None:
            finish, self._on_arrival = self._on_arrival, None
            finish()
        self._release()

    def _release(self) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended(self)

    def has_ended(self) -> bool:
        """Return True if MPI no longer uses the memory, even if a message failed."""
        try:
            return self.is_completed()
        except MPI.Exception:  # `wait` raises it again
            return True

    def is_success(self) -> bool:
        return self.has_ended() and self._error is None

    def exception(self) -> MPI.Exception | None:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._tensor]

    def get_future(self) -> torch.futures.Future:
        """Wait for the messages, and return a future that is done.

        It cannot be completed later, because MPI has no thread for that.
        """
        future: torch.futures.Future = torch.futures.Future()
        try:
            future.set_result(self.result())
        except MPI.Exception as error:
            future.set_exception(error)
        return future

    def source_rank(self) -> int:
        """Return the rank in the group that sent the tensor. Call it on a receive, after `wait`."""
        return self._status.Get_source()

    def _source_rank(self) -> Any:  # torch.distributed.recv calls it by this name
        return self.source_rank()
