"""Communicators: messages between two ranks."""

import pickle
from operator import index
from typing import Any

import _hub
import numpy as np
from mpi4py._buffers import Buffer, buffer
from mpi4py._groups import Shared
from mpi4py._identity import Identity
from mpi4py._matched import MESSAGE_NO_PROC, Message, Probe, found_by
from mpi4py._operations import Nothing, Operation, Receive, Send, check_answer, progress, wait
from mpi4py._requests import Prequest, Request
from mpi4py._values import ANY_SOURCE, ANY_TAG, ERR_RANK, ERR_TAG, PROC_NULL, Exception, Status


def pickled(value: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)


class Messages(Identity):
    """The methods of communicators that send, receive, and probe."""

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
        shared, tag = Messages._get(self), index(tag)
        progress()
        if tag < 0:
            raise Exception(ERR_TAG)
        if dest == PROC_NULL:
            return Nothing((PROC_NULL, ANY_TAG, 0))
        return Send(api, shared.context, Messages._peer(self, dest), tag, data, detached)

    def _receive(self, api: str, into: np.ndarray | None, source: int, tag: int) -> Operation:
        shared, tag = Messages._get(self), index(tag)
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
        shared, peer = self._get(), self._peer(source, any_source=True)
        progress()
        return _hub.find_send(shared.context, peer, index(tag)), shared

    def _probe(self, api: str, source: int, tag: int, status: Status | None) -> int:
        """Return the slot of the first message that fits, or -1 for `PROC_NULL`."""
        if source == PROC_NULL:
            if status is not None:
                status.fill(PROC_NULL, ANY_TAG, 0)
            return -1
        send, shared = self._find(source, tag)
        if send < 0:
            peer = self._peer(source, any_source=True)
            probe = Probe(api, peer, index(tag))
            send = check_answer(_hub.wait_for_send(shared.context, peer, probe.tag), probe)
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
        return (
            Messages.Mprobe(self, source, tag, status)
            if Messages.Iprobe(self, source, tag)
            else None
        )

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
    """Add all forms of sends. They wait for the receiver, except for buffered sends."""

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
