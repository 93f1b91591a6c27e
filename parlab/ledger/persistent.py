"""Records persistent requests (`Send_init`, `Allreduce_init`) each time they are started."""

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from parlab.ledger.calls import Call
from parlab.ledger.entries import Entries
from parlab.ledger.requests import RecordsCompletion, note_arrival

# The op to record for each start, by the name of the method that makes the request.
MAKERS = {
    "Send_init": "isend",
    "Bsend_init": "isend",
    "Ssend_init": "isend",
    "Rsend_init": "isend",
    "Recv_init": "irecv",
}


class Prequest(MPI.Prequest):
    """mpi4py's class, with a `Startall` that also records watched requests."""

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        for request in requests:
            if isinstance(request, WatchedPrequest):
                request.begin()
        super().Startall(requests)


MPI.Prequest = Prequest  # otherwise, `MPI.Prequest.Startall` would not be recorded


class WatchedPrequest(RecordsCompletion, Prequest):
    """A persistent request that records a copy of `call` each time it is started.

    It notices `Start`, `Startall`, `Wait`, and `Test` at once. It notices an end in other calls,
    such as `Waitall`, later.
    """

    def __new__(cls, request: MPI.Prequest, *_: Any) -> "WatchedPrequest":
        return super().__new__(cls, request)

    def __init__(
        self,
        request: MPI.Prequest,
        call: Call,
        entries: Entries,
        number: Callable[[int], int | None],
    ) -> None:
        self._template, self._entries, self._number = call, entries, number
        self._call: Call | None = None

    def Start(self) -> None:
        self.begin()
        super().Start()

    def begin(self) -> None:
        """Record a start. The previous one has ended by now, even if this was not noticed."""
        if self._call is not None:
            self._call.end, self._call.end_seen = time.perf_counter(), False
        self._call = replace(self._template, start=time.perf_counter(), end=None)
        self._entries.enter(self._call)
        self._entries.follow(self._settled)

    def _complete(self, status: MPI.Status) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        call.end = time.perf_counter()
        if call.op == "irecv" and status.Get_source() != MPI.ANY_SOURCE:
            note_arrival(call, status, self._number)

    def _settled(self) -> bool:
        """Record the end if MPI has completed the request and no `Wait` or `Test` noticed it.

        Return True if this call has ended.
        """
        call, status = self._call, MPI.Status()
        if call is not None and self.Get_status(status):
            self._complete(status)
            call.end_seen = False
        return self._call is not call or call is None


def maker(name: str, op: str, entry: Callable[..., Call | None]) -> Callable[..., Any]:
    """Return the method `name` of a watched communicator. `entry` makes the call to record."""
    method = getattr(MPI.Topocomm, name)
    signature = inspect.signature(method)

    def make(self: Any, *args: Any, **kwargs: Any) -> MPI.Prequest:
        request = method(self._watched, *args, **kwargs)
        bound = signature.bind(self._watched, *args, **kwargs)
        bound.apply_defaults()
        call = entry(self, name, op, bound.arguments, request)
        return (
            request if call is None else WatchedPrequest(request, call, self._entries, self.number)
        )

    make.__name__ = name
    return make
