"""The Work objects that operations on an emulated network return.

A Work is complete when its data was exchanged and the modeled time is over.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from parlab.network.clock import now, sleep_until
from parlab.runtime.torch_mpi.work import NO_TIMEOUT, PointToPointWork

# How often a rank checks, within the modeled time, whether the others have called a collective.
# This is enough to exchange the data in time. Each check takes a little CPU time.
_POLLS = 4
_MIN_POLL, _MAX_POLL = 1e-4, 2e-3
# A rank that waits longer than this wakes up in between, to check for a revocation (s).
MAX_SLEEP = 0.1


LookAfter = Callable[["EmulatedWork"], None]


class EmulatedWork(dist.Work):
    """An operation on `comm`. `seconds` is the modeled time, and `tensors` is the result.

    `get_future` calls `look_after(work)`, which must advance the operation and complete its future.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        look_after: LookAfter,
        tensors: list[torch.Tensor],
        seconds: float,
    ) -> None:
        super().__init__()
        self._comm, self._look_after = comm, look_after
        self._tensors = tensors
        self._error: BaseException | None = None
        self._future: torch.futures.Future | None = None
        self.end = 0.0  # of the modeled time; 0 until it is known
        self.poll_seconds = min(max(seconds / _POLLS, _MIN_POLL), _MAX_POLL)

    # Subclasses define these methods.

    def advance(self) -> None:
        """Advance the real exchange as far as possible without waiting for other ranks."""
        raise NotImplementedError

    def exchanged(self) -> bool:
        """Return True if the real exchange is over, whether it succeeded or failed."""
        raise NotImplementedError

    # torch.distributed and its users call these methods.

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Sleep until the operation is complete.

        Raises RuntimeError after `timeout` (by default, there is none), and errors of MPI as
        MPI.Exception.
        """
        deadline = now() + timeout.total_seconds() if timeout > NO_TIMEOUT else float("inf")
        while True:
            self.advance()
            if self.exchanged():
                break
            self._check(deadline, timeout)
            time.sleep(self.poll_seconds)
        while self._error is None and now() < self.end:
            self._check(deadline, timeout)
            sleep_until(min(self.end, now() + MAX_SLEEP))
        if self._error is not None:
            raise self._error
        return True

    def _check(self, deadline: float, timeout: timedelta) -> None:
        if self.revoked():
            raise MPI.Exception(MPI.ERR_REVOKED)
        if now() > deadline:
            raise RuntimeError(f"no matching send, receive or collective within {timeout}")

    def is_over(self) -> bool:
        """Return True if the operation is known to be complete. This does not advance it."""
        return self.exchanged() and (self._error is not None or now() >= self.end)

    def is_completed(self) -> bool:
        self.advance()
        return self.is_over()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        """Return a future that is done when the operation is. Its value is the list of tensors."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._look_after(self)
        return self._future

    def complete(self) -> None:
        """Complete the future, if there is one. One thread calls this after `is_over()`."""
        if self._future is None or self._future.done():
            return
        if self._error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(self._error)

    def revoked(self) -> bool:
        """Return True if the operation will never be over, because its communicator is revoked."""
        return not self.is_over() and self._comm.Is_revoked()

    def give_up(self) -> None:
        """Make the operation fail, because its communicator is revoked."""
        self._error = MPI.Exception(MPI.ERR_REVOKED)


class CollectiveWork(EmulatedWork):
    """A collective. `exchange` really exchanges the data, and blocks until all ranks take part.

    `advance_all` calls `run_exchange` of the collectives that all ranks have called, in order.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        look_after: LookAfter,
        seconds: float,
        exchange: Callable[[], dist.Work],
        advance_all: Callable[[], None],
    ) -> None:
        super().__init__(comm, look_after, [], seconds)
        self.exchange: Callable[[], dist.Work] | None = exchange
        self._advance_all = advance_all

    def advance(self) -> None:
        if self.exchange is not None:
            self._advance_all()

    def run_exchange(self, end: float) -> None:
        """Exchange the data. All ranks have called the collective, and it will end at `end` (s)."""
        self.end = end
        try:
            assert self.exchange is not None
            self._tensors = self.exchange().result()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else RuntimeError("interrupted")
            if not isinstance(error, Exception):
                raise
        finally:
            self.exchange = None  # releases its arguments

    def exchanged(self) -> bool:
        return self.exchange is None or self._error is not None


class MessageWork(EmulatedWork):
    """A message that is sent or received.

    After it has really arrived, `end_of` returns the modeled time of its arrival. `lock` is held
    during MPI calls.
    """

    def __init__(
        self,
        real: PointToPointWork,
        look_after: LookAfter,
        tensors: list[torch.Tensor],
        seconds: float,
        end_of: Callable[[], float],
        lock: threading.Lock,
    ) -> None:
        super().__init__(real.comm, look_after, tensors, seconds)
        self._real, self._end_of, self._lock = real, end_of, lock
        self._done = False

    def advance(self) -> None:
        with self._lock:
            if self.exchanged():
                return
            try:
                if self._real.is_completed():
                    self.end = self._end_of()
                    self._done = True
            except MPI.Exception as error:
                self._error = error

    def exchanged(self) -> bool:
        return self._done or self._error is not None

    def source_rank(self) -> int:
        """Return the rank in the group that sent the tensor. Call it on a receive, after `wait`."""
        return self._real.source_rank()

    def _source_rank(self) -> Any:  # torch.distributed.recv calls it by this name
        return self.source_rank()
