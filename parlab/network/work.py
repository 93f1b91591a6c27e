"""What an operation on an emulated network returns: complete when its exchange is done and the
modeled time is over."""

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

# How often a rank looks whether the others have come: often enough to do the exchange within the
# modeled time, and no oftener, since each look takes a little of a core.
_LOOKS = 4
_SHORTEST_LOOK, _LONGEST_LOOK = 1e-4, 2e-3
# A rank that sleeps until a far end looks up so often, to hear that it is to be freed.
NAP = 0.1


LookAfter = Callable[["EmulatedWork"], None]


class EmulatedWork(dist.Work):
    """An operation under way on `comm`. `seconds` is the modeled time, `tensors` the result.

    Whoever asks for its future calls `look_after(work)`, which has it advanced and completed.
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
        self.poll_seconds = min(max(seconds / _LOOKS, _SHORTEST_LOOK), _LONGEST_LOOK)

    # What a kind of operation says of itself.

    def advance(self) -> None:
        """Do what can be done of the real exchange without waiting for other ranks."""
        raise NotImplementedError

    def exchanged(self) -> bool:
        """Whether the real exchange is over, well or not."""
        raise NotImplementedError

    # What torch.distributed and its users ask.

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Sleep until the operation is complete.

        Raises RuntimeError after `timeout` (none by default), MPI.Exception when MPI does.
        """
        deadline = now() + timeout.total_seconds() if timeout > NO_TIMEOUT else float("inf")
        while True:
            self.advance()
            if self.exchanged():
                break
            self._look_up(deadline, timeout)
            time.sleep(self.poll_seconds)
        while self._error is None and now() < self.end:
            self._look_up(deadline, timeout)
            sleep_until(min(self.end, now() + NAP))
        if self._error is not None:
            raise self._error
        return True

    def _look_up(self, deadline: float, timeout: timedelta) -> None:
        if self.revoked():
            raise MPI.Exception(MPI.ERR_REVOKED)
        if now() > deadline:
            raise RuntimeError(f"no matching send, receive or collective within {timeout}")

    def over(self) -> bool:
        """Whether it is complete, as far as is known without a look at the other ranks."""
        return self.exchanged() and (self._error is not None or now() >= self.end)

    def is_completed(self) -> bool:
        self.advance()
        return self.over()

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
        """A future that is done when the operation is, with the list of tensors as its value."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._look_after(self)
        return self._future

    def complete(self) -> None:
        """Tell whoever holds the future. Called by one thread, when it is `over()`."""
        if self._future is None or self._future.done():
            return
        if self._error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(self._error)

    def revoked(self) -> bool:
        """Whether the ranks are to be freed, and it will never be over."""
        return not self.over() and self._comm.Is_revoked()

    def give_up(self) -> None:
        """Fail: the ranks are freed."""
        self._error = MPI.Exception(MPI.ERR_REVOKED)


class CollectiveWork(EmulatedWork):
    """A collective: `exchange` does it for real, blocking until the others do so too.

    `advance_all` carries out the exchanges whose turn it is, by `carry_out`.
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

    def carry_out(self, end: float) -> None:
        """Do the exchange; all ranks have come, and agree on the end."""
        self.end = end
        try:
            assert self.exchange is not None
            self._tensors = self.exchange().result()
        except BaseException as error:
            self._error = error
        self.exchange = None  # lets go of what it held

    def exchanged(self) -> bool:
        return self.exchange is None or self._error is not None


class MessageWork(EmulatedWork):
    """A message sent or received. `end_of` says when it is there, once it has really come.

    `lock` is held while MPI is asked about it.
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
        """The rank, in the group, that the tensor came from. For receives, after `wait`."""
        return self._real.source_rank()

    def _source_rank(self) -> Any:  # torch.distributed.recv asks for it by this name
        return self.source_rank()
