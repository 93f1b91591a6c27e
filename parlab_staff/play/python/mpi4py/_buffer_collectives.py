"""Collectives of buffers, such as `Allreduce`."""

from typing import Any

import numpy as np
from mpi4py._buffers import Buffer, buffer, in_place, parts
from mpi4py._comm import Messages
from mpi4py._exchange import Call, plan
from mpi4py._operations import Operation
from mpi4py._values import ERR_TRUNCATE, OPS, Exception, Op

_SUM = OPS["SUM"]
_NO_BYTES = np.empty(0, np.uint8)


def _copy(into: Buffer, data: np.ndarray) -> None:
    if data.size > into.bytes.size:
        raise Exception(ERR_TRUNCATE)
    into.bytes[: data.size] = data


def _reduced(op: Op, values: list[np.ndarray]) -> np.ndarray:
    total = values[0].copy()
    for value in values[1:]:
        if value.size != total.size:
            raise Exception(ERR_TRUNCATE)
        total = op.combine(total, value)
    return total


@plan
def _Barrier(comm: Messages, api: str) -> Operation:
    call = Call(comm, api, "Barrier")
    return call.exchange(
        dict.fromkeys(call.others, _NO_BYTES), dict.fromkeys(call.others), lambda came: None
    )


@plan
def _Bcast(comm: Messages, api: str, buf: Any, root: int = 0) -> Operation:
    call = Call(comm, api, "Bcast", root)
    if call.rank == root:
        data = buffer(buf).bytes
        return call.exchange(dict.fromkeys(call.others, data), {}, lambda came: None, data.size)
    return call.exchange({}, {root: buffer(buf, writable=True).bytes}, lambda came: None)


@plan
def _Gather(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, root: int = 0, *, same: bool = True
) -> Operation:
    call = Call(comm, api, "Gather", root)
    if call.rank != root:
        data = buffer(sendbuf).bytes
        return call.exchange({root: data}, {}, lambda came: None, data.size)
    into = parts(recvbuf, call.size, writable=True, same=same)
    if not in_place(sendbuf):
        _copy(into[root], buffer(sendbuf).bytes)
    return call.exchange(
        {}, {r: into[r].bytes for r in call.others}, lambda came: None, into[root].bytes.size
    )


@plan
def _Scatter(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, root: int = 0, *, same: bool = True
) -> Operation:
    call = Call(comm, api, "Scatter", root)
    if call.rank != root:
        return call.exchange({}, {root: buffer(recvbuf, writable=True).bytes}, lambda came: None)
    out = parts(sendbuf, call.size, same=same)
    if not in_place(recvbuf):
        _copy(buffer(recvbuf, writable=True), out[root].bytes)
    return call.exchange(
        {r: out[r].bytes for r in call.others},
        {},
        lambda came: None,
        sum(p.bytes.size for p in out),
    )


@plan
def _Allgather(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, *, same: bool = True
) -> Operation:
    call = Call(comm, api, "Allgather")
    into = parts(recvbuf, call.size, writable=True, same=same)
    own = into[call.rank].bytes if in_place(sendbuf) else buffer(sendbuf).bytes
    if not in_place(sendbuf):
        _copy(into[call.rank], own)
    receives = {r: into[r].bytes for r in call.others}
    return call.exchange(dict.fromkeys(call.others, own), receives, lambda came: None, own.size)


@plan
def _Alltoall(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, *, same: bool = True
) -> Operation:
    call = Call(comm, api, "Alltoall")
    into = parts(recvbuf, call.size, writable=True, same=same)
    out = into if in_place(sendbuf) else parts(sendbuf, call.size, same=same)
    if not in_place(sendbuf):
        _copy(into[call.rank], out[call.rank].bytes)
    sends = {r: out[r].bytes.copy() for r in call.others}
    return call.exchange(
        sends,
        {r: into[r].bytes for r in call.others},
        lambda came: None,
        sum(p.bytes.size for p in out),
    )


def _own_part(sendbuf: Any, recvbuf: Any) -> Buffer:
    return buffer(recvbuf if in_place(sendbuf) else sendbuf)


@plan
def _Reduce(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM, root: int = 0
) -> Operation:
    call = Call(comm, api, "Reduce", root)
    if call.rank != root:
        data = buffer(sendbuf).bytes
        return call.exchange({root: data}, {}, lambda came: None, data.size)
    into, own = buffer(recvbuf, writable=True), _own_part(sendbuf, recvbuf)

    def finish(came: dict[int, np.ndarray]) -> None:
        _copy(into, _reduce_all(op, own, {**came, root: own.bytes}))

    return call.exchange({}, dict.fromkeys(call.others), finish, own.bytes.size)


def _check_equal(own: Buffer, into: Buffer) -> None:
    """Raise mpi4py's errors if the buffers of a reduction have different types or lengths."""
    if own.dtype != into.dtype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if own.bytes.size != into.bytes.size:
        counts = f"send count {own.elements.size} and receive count {into.elements.size}"
        raise ValueError(f"mismatch in {counts}")


def _reduce_all(op: Op, own: Buffer, came: dict[int, np.ndarray]) -> np.ndarray:
    return _reduced(op, [came[rank].view(own.dtype) for rank in sorted(came)]).view(np.uint8)


@plan
def _Allreduce(comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM) -> Operation:
    call = Call(comm, api, "Allreduce")
    into, own = buffer(recvbuf, writable=True), _own_part(sendbuf, recvbuf)
    _check_equal(own, into)

    def finish(came: dict[int, np.ndarray]) -> None:
        _copy(into, _reduce_all(op, own, {**came, call.rank: own.bytes}))

    return call.exchange(
        dict.fromkeys(call.others, own.bytes), dict.fromkeys(call.others), finish, own.bytes.size
    )


@plan
def _Reduce_scatter(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = _SUM
) -> Operation:
    call = Call(comm, api, "Reduce_scatter")
    own, into = _own_part(sendbuf, recvbuf), buffer(recvbuf, writable=True)
    if recvcounts is None:
        into_size = own.bytes.size // call.size if in_place(sendbuf) else into.bytes.size
        recvcounts = [into_size // own.dtype.itemsize] * call.size
    out = parts((own.elements, list(recvcounts)), call.size)
    copied = out[call.rank].bytes.copy()

    def finish(came: dict[int, np.ndarray]) -> None:
        _copy(into, _reduce_all(op, own, {**came, call.rank: copied}))

    sends = {r: out[r].bytes.copy() for r in call.others}
    return call.exchange(sends, dict.fromkeys(call.others), finish, own.bytes.size)


@plan
def _Reduce_scatter_block(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM
) -> Operation:
    return _Reduce_scatter(comm, api, sendbuf, recvbuf, None, op)


@plan
def _Scan(comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM) -> Operation:
    return _prefix(Call(comm, api, "Scan"), sendbuf, recvbuf, op, include=1)


@plan
def _Exscan(comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM) -> Operation:
    return _prefix(Call(comm, api, "Exscan"), sendbuf, recvbuf, op, include=0)


def _prefix(call: Call, sendbuf: Any, recvbuf: Any, op: Op, include: int) -> Operation:
    into, own = buffer(recvbuf, writable=True), _own_part(sendbuf, recvbuf)
    _check_equal(own, into)
    before = [r for r in call.others if r < call.rank]

    def finish(came: dict[int, np.ndarray]) -> None:
        if include or before:
            _copy(
                into, _reduce_all(op, own, {**came, **({call.rank: own.bytes} if include else {})})
            )

    sends = {r: own.bytes for r in call.others if r > call.rank}
    return call.exchange(sends, dict.fromkeys(before), finish, own.bytes.size)
