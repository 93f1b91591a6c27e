"""Requests that record when they are complete."""

from collections.abc import Callable

from mpi4py import MPI

from parlab.ledger.calls import Call


def note_arrival(call: Call, status: MPI.Status, number: Callable[[int], int | None]) -> None:
    """Record the source, the size, and the tag of a received message."""
    call.source = number(status.Get_source())
    call.bytes_received = status.Get_count(MPI.BYTE)
    if call.op != "sendrecv":
        call.tag = status.Get_tag()


class RecordsCompletion:
    """A mixin for MPI requests that calls `_complete` when `Wait` or `Test` completes one."""

    def Wait(self, status: MPI.Status | None = None) -> bool:
        status = status or MPI.Status()
        super().Wait(status)
        self._complete(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        status = status or MPI.Status()
        completed = super().Test(status)
        if completed:
            self._complete(status)
        return completed

    def _complete(self, status: MPI.Status) -> None:
        """Record the end of the request, and the information in `status`."""
        raise NotImplementedError
