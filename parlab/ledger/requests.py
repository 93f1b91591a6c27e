"""Requests whose end is noted."""

from mpi4py import MPI


class RecordsCompletion:
    """Stands before an MPI request's class: once a `Wait` or `Test` has it done, it is noted."""

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
        """Note its end, and what `status` tells of it."""
        raise NotImplementedError
