"""A communicator on which sending takes its time: so a round trip has a known length."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpi4py import MPI

from parlab.checks.unbuffered import UnbufferedComm
from parlab.ledger import Ledger

SENDING = (
    *("Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend"),
    *("send", "ssend", "bsend", "isend", "issend", "ibsend"),
    *("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace", "sendrecv"),
)
MAKING_REQUESTS = ("Send_init", "Ssend_init", "Bsend_init", "Rsend_init")


def late_answers(comm: MPI.Intracomm, ledger: Ledger, delays: Sequence[float]) -> MPI.Intracomm:
    """`comm`, watched by `ledger`, on which message k leaves `delays[k]` seconds after its call.

    Communicators made from it are as late, and share the delays.
    """
    left: Iterator[float] = iter(delays)

    def late(send: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **options: Any) -> Any:
            time.sleep(next(left, 0.0))
            return send(*arguments, **options)

        return answer

    def makes_late_requests(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            request = make(*arguments, **options)
            request.Start = late(request.Start)
            return request

        return made

    methods = {name: late(getattr(UnbufferedComm, name)) for name in SENDING}
    methods |= {
        name: makes_late_requests(getattr(UnbufferedComm, name)) for name in MAKING_REQUESTS
    }
    return type("LateComm", (UnbufferedComm,), methods)(comm, ledger)
