"""Records messages that a matched probe (`Mprobe`) has found, when they are received."""

import threading
import time
from typing import Any

from mpi4py import MPI

from parlab.ledger.calls import Call


class WatchedMessage(MPI.Message):
    """A message found on the watched communicator `comm`. Its `Recv` or `recv` is recorded."""

    def __new__(cls, message: MPI.Message, comm: Any) -> "WatchedMessage":
        return super().__new__(cls, message)

    def __init__(self, message: MPI.Message, comm: Any) -> None:
        self._comm = comm

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        start, status = time.perf_counter(), status or MPI.Status()
        super().Recv(buf, status)
        self._enter("Recv", start, status)

    def recv(self, status: MPI.Status | None = None) -> Any:
        start, status = time.perf_counter(), status or MPI.Status()
        value = super().recv(status)
        self._enter("recv", start, status)
        return value

    def _enter(self, api: str, start: float, status: MPI.Status) -> None:
        comm = self._comm
        comm._entries.enter(
            Call(
                api=api,
                op="recv",
                bytes_sent=0,
                bytes_received=status.Get_count(MPI.BYTE),
                size=comm.size,
                start=start,
                end=time.perf_counter(),
                source=comm.number(status.Get_source()),
                tag=status.Get_tag(),
                thread=threading.current_thread().name,
            )
        )
