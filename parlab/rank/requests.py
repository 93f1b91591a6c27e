"""Waiting for several MPI requests so that a revocation ends it, and not the rank.

Open MPI 5.0 aborts all ranks where a communicator is revoked while `Waitall`, `Waitany` or
`Waitsome` waits for a send that nobody receives: "Send error after request freed". `Testall` and
`Test` raise, as `Wait` does. So `MPI.Request` and `MPI.Prequest` wait by testing.
"""

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

_Request, _Prequest = MPI.Request, MPI.Prequest


class _Kind(type):
    """Requests that mpi4py has made itself are instances as well."""

    def __instancecheck__(cls, instance: Any) -> bool:
        own = {Request: _Request, Prequest: _Prequest}.get(cls)
        return isinstance(instance, own) if own else super().__instancecheck__(instance)


class _WaitsByTesting:
    """mpi4py's own methods of these names. Each test lets MPI do its work, as waiting does."""

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
    # A test of one that was not started says that it is done.
    return any(isinstance(one, _Prequest) for one in requests)


class Request(_WaitsByTesting, _Request, metaclass=_Kind):
    __doc__ = _Request.__doc__


class Prequest(_WaitsByTesting, _Prequest, metaclass=_Kind):
    __doc__ = _Prequest.__doc__


MPI.Request, MPI.Prequest = Request, Prequest
