"""Probes, and messages that a matched probe has found."""

from collections.abc import Callable
from typing import Any

import _hub
from mpi4py._buffers import buffer
from mpi4py._operations import Operation, Receive
from mpi4py._requests import Request
from mpi4py._values import ANY_SOURCE, ANY_TAG, Status


class Message:
    """A message that a matched probe has found. It can be received once."""

    def __new__(cls, message: "Message | None" = None, *_: Any) -> "Message":
        self = super().__new__(cls)
        self._found = message._found if isinstance(message, Message) else []
        return self

    @classmethod
    def _of(cls, slot: int, number: Callable[[int], int]) -> "Message":
        self = cls()
        self._found = [(slot, number)]
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._found == other._found

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._found)

    def _receive(self, api: str, into: Any) -> Request:
        if not self._found:
            raise ValueError("this message was already received")
        slot, number = self._found.pop()
        return Request._of(Receive(api, 0, -1, -1, into, slot), number)

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        Message.Irecv(self, buf).Wait(status)

    def Irecv(self, buf: Any) -> Request:
        return self._receive("Recv", buffer(buf, writable=True).bytes)

    def recv(self, status: Status | None = None) -> Any:
        return self._receive("recv", None).wait(status)

    def irecv(self) -> Request:
        return self._receive("recv", None)

    @classmethod
    def Probe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> "Message":
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> "Message | None":
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe


MESSAGE_NULL, MESSAGE_NO_PROC = Message(), Message()


class Probe(Operation):
    """A probe that waits for a message."""

    def __init__(self, api: str, peer: int, tag: int) -> None:
        super().__init__(api, "recv", peer, tag, 0)

    def next_slot(self) -> int | None:
        return -1  # only the probe itself completes it


def found_by(send: int) -> tuple[int, int, int]:
    """Return the source, the tag, and the number of bytes of a message that a probe has found."""
    source, tag, bytes_, _ = _hub.describe(send)
    return source, tag, bytes_
