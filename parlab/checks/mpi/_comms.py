"""Communicators on which messages start late, or on which a rank is alone."""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.checks.base.unbuffered import UnbufferedComm
from parlab.ledger import Ledger


def _methods_with(parameter: str) -> set[str]:
    """Return the names of the methods of communicators that have this parameter."""
    names = [name for name in dir(MPI.Comm) if name[0] != "_" and callable(getattr(MPI.Comm, name))]
    return {n for n in names if parameter in inspect.signature(getattr(MPI.Comm, n)).parameters}


SENDS = _methods_with("dest")
RECEIVES = _methods_with("source") - SENDS


def delayed(
    comm: MPI.Intracomm,
    ledger: Ledger,
    sends: Iterable[float] = (),
    receives: Iterable[float] = (),
) -> MPI.Intracomm:
    """Return `comm`, watched by `ledger`, on which messages start late.

    Args:
        sends: seconds to sleep before each send, in order. Later sends are not delayed.
        receives: the same for receives.

    Communicators made from it share the delays.
    """
    late_sends, late_receives = iter(sends), iter(receives)
    polls = {"Probe", "Iprobe", "Improbe", "probe", "iprobe", "improbe"}
    methods = {name: _late(name, late_sends) for name in SENDS}
    methods |= {name: _late(name, late_receives) for name in RECEIVES - polls}
    return type("DelayedComm", (UnbufferedComm,), methods)(comm, ledger)


def _late(name: str, seconds: Iterator[float]) -> Callable[..., Any]:
    """Return the method `name`, delayed. A persistent request is delayed when it is started."""
    method = getattr(UnbufferedComm, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if not name.endswith("_init"):
            time.sleep(next(seconds, 0.0))
            return method(*arguments, **options)
        request = method(*arguments, **options)
        if hasattr(request, "begin"):  # a request for MPI.PROC_NULL is not watched
            begin = request.begin
            request.begin = lambda: (time.sleep(next(seconds, 0.0)), begin())
        return request

    return call


class LonelyComm(MPI.Intracomm):
    """Rank `rank` of `size` without the others: sends go nowhere, and receives get `data`.

    `destinations` lists the receivers of its sends. Calls other than messages raise
    NotImplementedError, because they would wait for ranks that do not exist.
    """

    def __new__(cls, own: MPI.Intracomm, *_: Any) -> "LonelyComm":
        return super().__new__(cls, own)

    def __init__(self, own: MPI.Intracomm, rank: int, size: int, data: np.ndarray) -> None:
        self._numbers, self._data = (rank, size), data
        self.destinations: list[int] = []

    rank = property(lambda self: self._numbers[0])
    size = property(lambda self: self._numbers[1])

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Dup(self, info: MPI.Info | None = None) -> "LonelyComm":
        return self

    def Free(self) -> None:
        pass


def _lonely(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)
    signature = inspect.signature(method)

    def call(self: LonelyComm, *arguments: Any, **options: Any) -> Any:
        bound = signature.bind(self, *arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        if given.get("status") is not None:
            _refuse()  # it would show another source
        if given.get("source", MPI.PROC_NULL) != MPI.PROC_NULL:
            tag = max(given.get("recvtag", given.get("tag")), 0)
            MPI.Intracomm.Isend(self, self._data, dest=0, tag=tag)
            given["source"] = 0
        if given.get("dest", MPI.PROC_NULL) != MPI.PROC_NULL:
            self.destinations.append(given["dest"])
            given["dest"] = MPI.PROC_NULL
        return method(*bound.args, **bound.kwargs)

    return call


def _refuse(*_: Any, **__: Any) -> None:
    raise NotImplementedError


for _name in dir(MPI.Intracomm):
    if _name in SENDS | RECEIVES:
        setattr(LonelyComm, _name, _lonely(_name))
    elif (
        _name[0] != "_"
        and callable(getattr(MPI.Intracomm, _name))
        and _name not in vars(LonelyComm)
    ):
        setattr(LonelyComm, _name, _refuse)
