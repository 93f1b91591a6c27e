"""Requests that record when they are complete."""

from mpi4py import MPI


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
