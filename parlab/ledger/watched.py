"""mpi4py communicators and requests that record their calls in a ledger."""

import ctypes
import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from parlab.ledger.calls import Call
from parlab.ledger.entries import Entries
from parlab.ledger.persistent import MAKERS, maker
from parlab.ledger.probed import WatchedMessage
from parlab.ledger.requests import RecordsCompletion, note_arrival
from parlab.ledger.traffic import traffic

_POINT_TO_POINT = {
    "send": ["Send", "Bsend", "Ssend", "Rsend", "send", "bsend", "ssend"],
    "isend": ["Isend", "Ibsend", "Issend", "Irsend", "isend", "ibsend", "issend"],
    "recv": ["Recv", "recv"],
    "irecv": ["Irecv", "irecv"],
    "sendrecv": ["Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace", "sendrecv"],
}
# Each also exists with the prefix I, which does not block, and in lower case, for objects.
_COLLECTIVES = {
    "all_gather": ["Allgather", "Allgatherv"],
    "all_reduce": ["Allreduce"],
    "all_to_all": ["Alltoall", "Alltoallv", "Alltoallw"],
    "barrier": ["Barrier"],
    "broadcast": ["Bcast"],
    "exscan": ["Exscan"],
    "gather": ["Gather", "Gatherv"],
    "neighbor_all_gather": ["Neighbor_allgather", "Neighbor_allgatherv"],
    "neighbor_all_to_all": ["Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw"],
    "reduce": ["Reduce"],
    "reduce_scatter": ["Reduce_scatter", "Reduce_scatter_block"],
    "scan": ["Scan"],
    "scatter": ["Scatter", "Scatterv"],
}
_MAKERS = [
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent"),
]


class WatchedRequest(RecordsCompletion, MPI.Request):
    """A request that records in its call when it was complete, and what was received."""

    def __new__(
        cls, request: MPI.Request, call: Call, number: Callable[[int], int | None]
    ) -> "WatchedRequest":
        return super().__new__(cls, request)

    def __init__(
        self, request: MPI.Request, call: Call, number: Callable[[int], int | None]
    ) -> None:
        self._call, self._number = call, number

    def wait(self, status: MPI.Status | None = None) -> Any:
        status = status or MPI.Status()
        value = super().wait(status)
        self._complete(status)
        return value

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        status = status or MPI.Status()
        completed, value = super().test(status)
        if completed:
            self._complete(status)
        return completed, value

    def _complete(self, status: MPI.Status) -> None:
        if self._call.end is not None:
            return
        self._call.end = time.perf_counter()
        if self._call.op == "irecv":
            note_arrival(self._call, status, self._number)

    def settled(self) -> bool:
        """Return True if the call is complete. Record its end if no wait or test noticed it."""
        if self._call.end is None and self == MPI.REQUEST_NULL:
            self._call.end = time.perf_counter()
            self._call.end_seen = False
        return self._call.end is not None


class WatchedComm(MPI.Intracomm):
    """A communicator with the handle of `comm` that records each call in `entries`.

    It makes its calls on `comm` itself, so it still works after the handle of `comm` is renewed.
    Communicators that are made from it are watched as well. Their entries number ranks as in
    `origin`, the communicator that was watched first.
    """

    def __new__(
        cls,
        comm: MPI.Intracomm | None = None,
        entries: Any = None,
        origin: MPI.Intracomm | None = None,
    ) -> "WatchedComm":
        # Do not use `super()`, which is another class for a communicator with a topology.
        return MPI.Intracomm.__new__(cls, comm)

    def __init__(
        self, comm: MPI.Intracomm, entries: Entries, origin: MPI.Intracomm | None = None
    ) -> None:
        self._watched = comm
        self._entries = entries
        self._origin = origin or comm
        self._made: list[MPI.Intracomm] = []  # communicators that were made from this one
        self.revoked_together: list[MPI.Intracomm] = []  # others, which all ranks have made
        self._numbers: list[int] | None = None  # numbers of this one's ranks in `origin`
        if origin is not None:
            members = comm.group
            self._numbers = members.Translate_ranks(range(members.size), origin.group)

    def number(self, rank: int | None) -> int | None:
        """Return the number that a rank of this communicator has in `origin`."""
        return rank if rank is None or self._numbers is None else self._numbers[rank]

    def Is_revoked(self) -> bool:
        self._renew()
        return super().Is_revoked()

    def Revoke(self) -> None:
        """Revoke this communicator and those made from it, in which ranks may also be waiting."""
        self.revoke_alone()
        for made in self._made:
            if made != MPI.COMM_NULL:
                made.Revoke()

    def revoke_alone(self) -> None:
        """Revoke this communicator, but not those made from it.

        Another rank may still be inside of the call that makes one of them, such as `Split`. Open
        MPI 5.0.11 crashes there if a communicator is revoked before it is complete.
        """
        for comm in (self._watched, *self.revoked_together):
            comm.Revoke()

    def Free(self) -> None:
        self._watched.Free()
        self._renew()

    def _renew(self) -> None:
        if isinstance(self._watched, WatchedComm):  # a watched communicator is watched again
            self._watched._renew()
        if self.handle != self._watched.handle:
            ctypes.c_void_p.from_address(MPI._addressof(self)).value = self._watched.handle


def _recorded(name: str, op: str) -> Callable[..., Any]:
    method = getattr(MPI.Topocomm, name)
    signature = inspect.signature(method)
    takes_status = "status" in signature.parameters

    @functools.wraps(method)
    def call(self: WatchedComm, *args: Any, **kwargs: Any) -> Any:
        self._renew()
        self._entries.settle()
        bound = signature.bind(self._watched, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if takes_status and given["status"] is None:
            given["status"] = MPI.Status()
        start = time.perf_counter()
        result = method(*bound.args, **bound.kwargs)
        end = time.perf_counter()
        entry = _entry(self, name, op, given, result, start, end)
        if entry is not None:
            self._entries.enter(entry)
            if isinstance(result, MPI.Request):
                entry.end = None
                result = WatchedRequest(result, entry, self.number)
                self._entries.follow(result.settled)
        return result

    return call


def _entry(
    watched: WatchedComm,
    name: str,
    op: str,
    given: dict[str, Any],
    result: Any,
    start: float,
    end: float | None,
) -> Call | None:
    comm = watched._watched
    to, source = given.get("dest"), given.get("source")
    if MPI.PROC_NULL in (to, source):
        to, source = (None if rank == MPI.PROC_NULL else rank for rank in (to, source))
        if to is None and source is None:
            return None  # no message
        op = "recv" if to is None else "send"
    sent, received = traffic(op, name, given, result, comm)
    entry = Call(
        api=name,
        op=op,
        bytes_sent=sent,
        bytes_received=received,
        size=comm.size,
        start=start,
        end=end,
        to=watched.number(to),
        source=None if source == MPI.ANY_SOURCE else watched.number(source),
        root=watched.number(given.get("root")),
        tag=_tag(given),
        thread=threading.current_thread().name,
    )
    status = given.get("status")
    if status is not None and source is not None:
        note_arrival(entry, status, watched.number)
    return entry


def _tag(given: dict[str, Any]) -> int | None:
    tag = given.get("sendtag", given.get("tag"))
    return None if tag == MPI.ANY_TAG else tag


def _maker(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    @functools.wraps(method)
    def make(self: WatchedComm, *args: Any, **kwargs: Any) -> MPI.Comm:
        made = method(self._watched, *args, **kwargs)
        if made == MPI.COMM_NULL:
            return made
        # A communicator with a topology keeps its methods, such as `Shift` and `Get_coords`.
        kind = type(self)
        if not issubclass(kind, type(made)):
            kind = type(f"Watched{type(made).__name__}", (kind, type(made)), {})
        watched = kind(made, self._entries, self._origin)
        self._made.append(watched)
        return watched

    return make


def _prober(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    @functools.wraps(method)
    def probe(self: WatchedComm, *args: Any, **kwargs: Any) -> MPI.Message | None:
        self._renew()
        self._entries.settle()
        found = method(self._watched, *args, **kwargs)
        no_message = found is None or found in (MPI.MESSAGE_NULL, MPI.MESSAGE_NO_PROC)
        return found if no_message else WatchedMessage(found, self)

    return probe


def _collective_names(names: list[str]) -> list[str]:
    every = [form for name in names for form in (name, f"I{name.lower()}", name.lower())]
    return [name for name in every if hasattr(MPI.Topocomm, name)]


RECORDED = {name: op for op, names in _POINT_TO_POINT.items() for name in names}
RECORDED |= {name: op for op, names in _COLLECTIVES.items() for name in _collective_names(names)}
for _name, _op in RECORDED.items():
    setattr(WatchedComm, _name, _recorded(_name, _op))
for _name in _MAKERS:
    setattr(WatchedComm, _name, _maker(_name))
for _name in ("Mprobe", "mprobe", "Improbe", "improbe"):
    setattr(WatchedComm, _name, _prober(_name))
_PERSISTENT = MAKERS | {f"{name}_init": op for op, names in _COLLECTIVES.items() for name in names}
for _name, _op in _PERSISTENT.items():
    _enter = functools.partial(_entry, start=0.0, end=None)
    setattr(WatchedComm, _name, maker(_name, _op, _enter))
