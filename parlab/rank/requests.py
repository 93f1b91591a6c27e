"""Makes `Waitall`, `Waitany`, and `Waitsome` fail without a crash when a communicator is revoked.

Open MPI 5.0 aborts all ranks if a communicator is revoked while one of these calls waits for a send
that no rank receives: "Send error after request freed". In contrast, `Wait`, `Test`, and `Testall`
raise an error. `MPI.Request` and `MPI.Prequest` therefore call tests in a loop.
"""

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

_Request, _Prequest = MPI.Request, MPI.Prequest


class _Kind(type):
    """A metaclass that also counts requests of mpi4py's own classes as instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        own = {Request: _Request, Prequest: _Prequest}.get(cls)
        return isinstance(instance, own) if own else super().__instancecheck__(instance)


class _WaitsByTesting:
    """Defines these methods of mpi4py as loops of tests. Each test lets MPI make progress."""

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> bool:
        while not _Request.Testall(requests, statuses):
            pass
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        if _persistent(requests):
            return _Request.Waitany(requests, status)
        while active := _active(requests):
            for index in active:
                if requests[index].Test(status):
                    return index
        return MPI.UNDEFINED

    @classmethod
    def Waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        if statuses is not None or _persistent(requests):
            return _Request.Waitsome(requests, statuses)
        while active := _active(requests):
            if ended := [index for index in active if requests[index].Test()]:
                return ended
        return None

    @classmethod
    def waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[Any]:
        while True:
            completed, values = _Request.testall(requests, statuses)
            if completed:
                return values

    @classmethod
    def waitany(
        cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None
    ) -> tuple[int, Any]:
        if _persistent(requests):
            return _Request.waitany(requests, status)
        while active := _active(requests):
            for index in active:
                completed, value = requests[index].test(status)
                if completed:
                    return index, value
        return MPI.UNDEFINED, None

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        if statuses is not None or _persistent(requests):
            return _Request.waitsome(requests, statuses)
        while active := _active(requests):
            tried = {index: requests[index].test() for index in active}
            if ended := {index: value for index, (completed, value) in tried.items() if completed}:
                return list(ended), list(ended.values())
        return None, None


def _active(requests: Sequence[MPI.Request]) -> list[int]:
    return [index for index, one in enumerate(requests) if one != MPI.REQUEST_NULL]


def _persistent(requests: Sequence[MPI.Request]) -> bool:
    # Testing a persistent request that was not started would report that it is complete.
    return any(isinstance(one, _Prequest) for one in requests)


class Request(_WaitsByTesting, _Request, metaclass=_Kind):
    __doc__ = _Request.__doc__


class Prequest(_WaitsByTesting, _Prequest, metaclass=_Kind):
    __doc__ = _Prequest.__doc__


MPI.Request, MPI.Prequest = Request, Prequest
