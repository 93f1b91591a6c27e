"""Requests and persistent requests."""

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py._operations import Operation, progress, wait, wait_any
from mpi4py._values import ANY_SOURCE, ANY_TAG, UNDEFINED, Status


class _Shared:
    """The state that all Python objects of one request share: operation, and numbers of ranks."""

    def __init__(self, operation: Operation | None, number: Callable[[int], int]) -> None:
        self.operation, self.number = operation, number


class Request:
    """A call that is under way. After a wait for it, the request equals `REQUEST_NULL`."""

    def __new__(cls, request: "Request | None" = None, *_: Any, **__: Any) -> "Request":
        self = super().__new__(cls)
        self._shared = request._shared if isinstance(request, Request) else _Shared(None, int)
        return self

    @classmethod
    def _of(cls, operation: Operation, number: Callable[[int], int]) -> "Request":
        self = cls()
        self._shared = _Shared(operation, number)
        return self

    def _null(self) -> bool:
        return self._shared.operation is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (
            self._shared is other._shared or (self._null() and other._null())
        )

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return not self._null()

    def _end(self, status: Status | None) -> Any:
        """Wait, and return the received object."""
        operation = self._shared.operation
        if operation is None:
            if status is not None:
                status.fill(ANY_SOURCE, ANY_TAG, 0)
            return None
        try:
            wait(operation)
        finally:
            self._forget()
        self._fill(status, operation)
        return operation.value

    def _fill(self, status: Status | None, operation: Operation) -> None:
        if status is None:
            return
        source, tag, count = operation.found or (ANY_SOURCE, ANY_TAG, 0)
        status.fill(self._shared.number(source), tag, count)
        status.cancelled_ = operation.cancelled

    def _forget(self) -> None:
        self._shared.operation = None

    def _completed(self) -> bool:
        progress()
        return self._null() or self._shared.operation.completed

    def Wait(self, status: Status | None = None) -> bool:
        self._end(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        return self._end(status)

    def Test(self, status: Status | None = None) -> bool:
        if not self._completed():
            return False
        self._end(status)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        return (True, self._end(status)) if self._completed() else (False, None)

    def Get_status(self, status: Status | None = None) -> bool:
        if not self._completed():
            return False
        if not self._null():
            self._fill(status, self._shared.operation)
        return True

    def Cancel(self) -> None:
        if not self._null():
            self._shared.operation.cancel()

    def Free(self) -> None:
        self._shared.operation = None

    cancel = Cancel

    @classmethod
    def Waitall(cls, requests: Sequence["Request"], statuses: list[Status] | None = None) -> bool:
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def waitall(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[Any]:
        return [
            Request._end(one, status)
            for one, status in zip(requests, _statuses(requests, statuses), strict=True)
        ]

    @classmethod
    def Waitany(cls, requests: Sequence["Request"], status: Status | None = None) -> int:
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, Any]:
        active = [i for i, one in enumerate(requests) if not one._null()]
        if not active:
            return UNDEFINED, None
        index = active[wait_any([requests[i]._shared.operation for i in active])]
        return index, Request._end(requests[index], status)

    @classmethod
    def Waitsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[int] | None:
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        active = [i for i, one in enumerate(requests) if not one._null()]
        if not active:
            return None, None
        wait_any([requests[i]._shared.operation for i in active])
        return cls._ended(requests, active, statuses)

    @classmethod
    def _ended(cls, requests: Any, active: list[int], statuses: Any) -> tuple[list[int], list[Any]]:
        ended = [i for i in active if requests[i]._shared.operation.completed]
        return ended, [
            Request._end(requests[i], s)
            for i, s in zip(ended, _statuses(ended, statuses), strict=True)
        ]

    @classmethod
    def Testall(cls, requests: Sequence["Request"], statuses: list[Status] | None = None) -> bool:
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        if not all(one._completed() for one in requests):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testany(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, bool]:
        index, flag, _ = cls.testany(requests, status)
        return index, flag

    @classmethod
    def testany(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, bool, Any]:
        active = [i for i, one in enumerate(requests) if not one._null()]
        ended = next((i for i in active if requests[i]._completed()), None)
        if ended is None:
            return UNDEFINED, not active, None
        return ended, True, Request._end(requests[ended], status)

    @classmethod
    def Testsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[int] | None:
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        progress()
        active = [i for i, one in enumerate(requests) if not one._null()]
        return cls._ended(requests, active, statuses) if active else (None, None)


def _statuses(requests: Sequence, statuses: list[Status] | None) -> list[Status | None]:
    if statuses is None:
        return [None] * len(requests)
    statuses.extend(Status() for _ in range(len(requests) - len(statuses)))
    return statuses[: len(requests)]


class Prequest(Request):
    """A persistent request: each `Start` begins its call again."""

    @classmethod
    def _prepared(cls, begin: Callable[[], Operation], number: Callable[[int], int]) -> "Prequest":
        self = cls()
        self._shared = _Shared(None, number)
        self._shared.begin = begin
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self._shared is other._shared

    __hash__ = None  # type: ignore[assignment]

    def Start(self) -> None:
        self._shared.operation = self._shared.begin()

    @classmethod
    def Startall(cls, requests: Sequence["Prequest"]) -> None:
        for request in requests:
            Prequest.Start(request)


class Grequest(Request):
    """mpi4py's class for requests that a program defines. They cannot be started in a page."""

    @classmethod
    def Start(cls, *_: Any, **__: Any) -> "Grequest":
        raise RuntimeError("MPI.Grequest.Start is not part of mpi4py in this page")


REQUEST_NULL = Request()
