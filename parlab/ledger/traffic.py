"""Counts the bytes that this rank passes to a call of mpi4py, and those that it gets back."""

from typing import Any

from mpi4py import MPI

from parlab.ledger.calls import without_unused
from parlab.ledger.sizes import buffer_bytes, object_bytes, objects_bytes

# Operations that send, or receive, one part for each rank.
_PARTS_SENT = ("scatter", "all_to_all")
_PARTS_RECEIVED = ("gather", "all_gather", "all_to_all")


def traffic(
    op: str, name: str, given: dict[str, Any], result: Any, comm: MPI.Intracomm
) -> tuple[int, int]:
    """Return the bytes sent and received by the call `name(**given)`, which returned `result`.

    `parlab.ledger` defines what these bytes are.
    """
    is_root = given.get("root") == comm.rank
    if name.islower():
        sent, received = _objects(op, given, result, is_root)
    else:
        sent, received = _buffers(op, name, given, comm.size)
    if op in ("send", "isend"):
        return sent, 0
    if op in ("recv", "irecv"):
        return 0, received
    return without_unused(op, is_root, sent, received)


def _buffers(op: str, name: str, given: dict[str, Any], size: int) -> tuple[int, int]:
    if "buf" in given:
        whole = buffer_bytes(given["buf"])
        return whole, whole
    sendbuf, recvbuf = given.get("sendbuf"), given.get("recvbuf")
    sent = buffer_bytes(sendbuf, size if op in _PARTS_SENT or name.endswith("block") else 1)
    received = buffer_bytes(recvbuf, size if op in _PARTS_RECEIVED else 1)
    if sendbuf is MPI.IN_PLACE:
        sent = received // size if op in ("gather", "all_gather") else received
        if op == "reduce_scatter":
            received //= size
    elif recvbuf is MPI.IN_PLACE:
        received = sent // size
    return sent, received


def _objects(op: str, given: dict[str, Any], result: Any, is_root: bool) -> tuple[int, int]:
    value = given.get("sendobj", given.get("obj"))
    if op in ("broadcast", "scatter") and not is_root:
        sent = 0  # MPI ignores the argument, which may be anything
    else:
        sent = objects_bytes(value) if op in _PARTS_SENT else object_bytes(value)
    # A status contains the received bytes, which `note_arrival` records. A request has none yet.
    if "status" in given or isinstance(result, MPI.Request) or op == "barrier":
        return (0 if op == "barrier" else sent), 0
    received = objects_bytes(result) if op in _PARTS_RECEIVED else object_bytes(result)
    return sent, received
