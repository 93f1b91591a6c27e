"""Communicators: who is in them, and messages."""

import ctypes
import pickle
from typing import Any

import _hub
import numpy as np
from mpi4py._buffers import Buffer, buffer
from mpi4py._groups import Group, Shared, compare
from mpi4py._operations import Nothing, Operation, Receive, Send, check_answer, progress, wait
from mpi4py._requests import MESSAGE_NO_PROC, Message, Prequest, Probe, Request, found_by
from mpi4py._values import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_COMM,
    ERR_RANK,
    ERR_REVOKED,
    ERR_TAG,
    PROC_NULL,
    Exception,
    Info,
    Status,
)

_NO_HANDLE = 0
_FIRST_HANDLE = 0x10000
_shared: dict[int, Shared] = {}
_delete_functions: dict[int, Any] = {}


def handle_of(shared: Shared) -> int:
    """Return the handle of a new communicator."""
    handle = _FIRST_HANDLE + shared.context
    _shared[handle] = shared
    return handle


def pickled(value: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)


class Messages:
    """The methods of communicators that concern themselves and messages."""

    def __new__(cls, comm: "Messages | None" = None, *_: Any, **__: Any) -> "Messages":
        self = super().__new__(cls)
        # As in mpi4py, the handle has an address, where the course may put another handle.
        self._cell = ctypes.c_void_p(comm.handle if comm is not None else _NO_HANDLE)
        return self

    @property
    def handle(self) -> int:
        return self._cell.value or _NO_HANDLE

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        from mpi4py import MPI

        shared = _shared.get(handle)
        comm = (MPI.Cartcomm if shared and shared.topology else MPI.Intracomm)()
        comm._cell.value = handle
        return comm

    def _get(self) -> Shared:
        shared = _shared.get(self.handle)
        if shared is None:
            raise Exception(ERR_COMM)
        if shared.revoked:
            raise Exception(ERR_REVOKED)
        return shared

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __bool__(self) -> bool:
        return self.handle != _NO_HANDLE

    def Get_rank(self) -> int:
        return Messages._get(self).rank

    def Get_size(self) -> int:
        return len(Messages._get(self).members)

    rank, size = property(Get_rank), property(Get_size)

    def Get_group(self) -> Group:
        shared = self._get()
        return Group(shared.members, shared.own)

    group = property(Get_group)

    def Get_name(self) -> str:
        return self._get().name

    def Set_name(self, name: str) -> None:
        self._get().name = name

    name = property(Get_name, Set_name)
    is_inter, is_intra = False, True

    def Is_inter(self) -> bool:
        return False

    def Is_intra(self) -> bool:
        return True

    def Get_info(self) -> Info:
        return Info()

    def Set_info(self, info: Info) -> None:
        pass

    def Get_errhandler(self) -> None:
        return None

    def Set_errhandler(self, errhandler: Any) -> None:
        pass

    @classmethod
    def Compare(cls, comm1: "Messages", comm2: "Messages") -> int:
        return compare(comm1._get(), comm2._get())

    def Free(self) -> None:
        shared = self._get()
        for keyval, value in shared.attributes.items():
            if _delete_functions.get(keyval):
                _delete_functions[keyval](self, keyval, value)
        del _shared[self.handle]
        self._cell.value = _NO_HANDLE

    Disconnect = Free

    def Is_revoked(self) -> bool:
        return _shared[self.handle].revoked if self.handle in _shared else False

    def Revoke(self) -> None:
        self._get().revoked = True

    def Abort(self, errorcode: int = 0) -> None:
        raise SystemExit(f"MPI_Abort was called with error code {errorcode}")

    @classmethod
    def Create_keyval(
        cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False
    ) -> int:
        _delete_functions[len(_delete_functions) + 1] = delete_fn
        return len(_delete_functions)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._get().attributes[keyval] = attrval

    def Get_attr(self, keyval: int) -> Any:
        return self._get().attributes.get(keyval)

    def Delete_attr(self, keyval: int) -> None:
        self._get().attributes.pop(keyval, None)

    # Messages

    def _peer(self, rank: int, *, any_source: bool = False) -> int:
        members = Messages._get(self).members
        if any_source and rank == ANY_SOURCE:
            return ANY_SOURCE
        if not 0 <= rank < len(members):
            raise Exception(ERR_RANK)
        return members[rank]

    def _send(
        self, api: str, data: np.ndarray, dest: int, tag: int, detached: bool = False
    ) -> Operation:
        shared = Messages._get(self)
        progress()
        if tag < 0:
            raise Exception(ERR_TAG)
        if dest == PROC_NULL:
            return Nothing((PROC_NULL, ANY_TAG, 0))
        return Send(api, shared.context, Messages._peer(self, dest), tag, data, detached)

    def _receive(self, api: str, into: np.ndarray | None, source: int, tag: int) -> Operation:
        shared = Messages._get(self)
        progress()
        if tag < ANY_TAG:
            raise Exception(ERR_TAG)
        if source == PROC_NULL:
            return Nothing((PROC_NULL, ANY_TAG, 0))
        return Receive(
            api, shared.context, Messages._peer(self, source, any_source=True), tag, into
        )

    def _request(self, operation: Operation) -> Request:
        return Request._of(operation, Messages._get(self).number)

    def _find(self, source: int, tag: int) -> tuple[int, Shared]:
        shared = self._get()
        progress()
        return _hub.find_send(shared.context, self._peer(source, any_source=True), tag), shared

    def _probe(self, api: str, source: int, tag: int, status: Status | None) -> int:
        """Return the slot of the first message that fits, or -1 from `PROC_NULL`."""
        if source == PROC_NULL:
            if status is not None:
                status.fill(PROC_NULL, ANY_TAG, 0)
            return -1
        send, shared = self._find(source, tag)
        if send < 0:
            peer = self._peer(source, any_source=True)
            probe = Probe(api, peer, tag)
            send = check_answer(_hub.wait_for_send(shared.context, peer, tag), probe)
            probe.cancel()
        self._fill(status, send)
        return send

    def _fill(self, status: Status | None, send: int) -> None:
        if status is not None:
            source, tag, count = found_by(send)
            status.fill(self._get().number(source), tag, count)

    def _taken(self, send: int) -> Message:
        return MESSAGE_NO_PROC if send < 0 else Message._of(_hub.take(send), self._get().number)

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        self._probe("Probe", source, tag, status)
        return True

    def Iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        if source == PROC_NULL:
            return Messages.Probe(self, source, tag, status)
        send, _ = self._find(source, tag)
        if send >= 0:
            self._fill(status, send)
        return send >= 0

    def Mprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message:
        return self._taken(self._probe("Mprobe", source, tag, status))

    def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        if source == PROC_NULL:
            return MESSAGE_NO_PROC
        return Messages.Mprobe(self, source, tag, status) if Messages.Iprobe(self, source, tag) else None

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    def Recv(
        self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        Messages._request(
            self, self._receive("Recv", buffer(buf, writable=True).bytes, source, tag)
        ).Wait(status)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return self._request(self._receive("Irecv", buffer(buf, writable=True).bytes, source, tag))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        return self._request(self._receive("recv", None, source, tag)).wait(status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return self._request(self._receive("irecv", None, source, tag))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        data, into = buffer(sendbuf).bytes, buffer(recvbuf, writable=True).bytes
        receiving = self._receive("Sendrecv", into, source, recvtag)
        sending = self._send("Sendrecv", data, dest, sendtag)
        wait(sending)
        self._request(receiving).Wait(status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        raise RuntimeError("Isendrecv is not part of mpi4py in this page: use Isend and Irecv")

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        into: Buffer = buffer(buf, writable=True)
        arriving = np.empty_like(into.bytes)
        receiving = self._receive("Sendrecv_replace", arriving, source, recvtag)
        wait(self._send("Sendrecv_replace", into.bytes, dest, sendtag))
        found = Status()
        self._request(receiving).Wait(found)
        into.bytes[: found.count] = arriving[: found.count]
        if status is not None:
            status.fill(found.source, found.tag, found.count)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        receiving = self._receive("sendrecv", None, source, recvtag)
        wait(self._send("sendrecv", pickled(sendobj), dest, sendtag))
        return self._request(receiving).wait(status)

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        into = buffer(buf, writable=True).bytes
        return Prequest._prepared(
            lambda: self._receive("Irecv", into, source, tag), self._get().number
        )


def _add_sends() -> None:
    """Add all forms of sends. They wait for the receiver, except for buffered ones."""

    def form(name: str) -> Any:
        detached = name.lower().lstrip("i")[0] == "b"

        def send_buffer(self: Messages, buf: Any, dest: int, tag: int = 0) -> None:
            wait(self._send(name, buffer(buf).bytes, dest, tag, detached))

        def isend_buffer(self: Messages, buf: Any, dest: int, tag: int = 0) -> Request:
            return Messages._request(
                self, Messages._send(self, name, buffer(buf).bytes, dest, tag, detached)
            )

        def send_object(self: Messages, obj: Any, dest: int, tag: int = 0) -> None:
            wait(self._send(name, pickled(obj), dest, tag, detached))

        def isend_object(self: Messages, obj: Any, dest: int, tag: int = 0) -> Request:
            return self._request(self._send(name, pickled(obj), dest, tag, detached))

        def persistent(self: Messages, buf: Any, dest: int, tag: int = 0) -> Prequest:
            data = buffer(buf).bytes
            return Prequest._prepared(
                lambda: self._send("Isend", data, dest, tag, detached), self._get().number
            )

        if name.endswith("_init"):
            return persistent
        if name[0].islower():
            return isend_object if name[0] == "i" else send_object
        return isend_buffer if name[0] == "I" else send_buffer

    for kind in ("send", "bsend", "ssend", "rsend"):
        for name in (kind.capitalize(), f"I{kind}", kind, f"i{kind}", f"{kind.capitalize()}_init"):
            method = form(name)
            method.__name__ = name
            setattr(Messages, name, method)
    del Messages.rsend, Messages.irsend  # mpi4py has none


_add_sends()
