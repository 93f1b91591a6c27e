"""Collectives: each rank sends its part directly to all ranks that need it.

`_plans` has one function for each collective. The blocking, non-blocking, and persistent methods are
made from it.
"""

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py._buffers import Buffer, buffer, in_place, parts
from mpi4py._comm import Messages, pickled
from mpi4py._operations import Exchange, Operation, progress, wait
from mpi4py._requests import Prequest, Request
from mpi4py._values import ERR_ROOT, ERR_TRUNCATE, OPS, Exception, Op

_SUM = OPS["SUM"]
_NO_BYTES = np.empty(0, np.uint8)
_TAGS = 64  # more than there are collectives
_plans: dict[str, Callable[..., Operation]] = {}


def _plan(function: Callable[..., Operation]) -> Callable[..., Operation]:
    _plans[function.__name__[1:]] = function
    return function


class _Call:
    """One collective call on one rank, as the plans see it."""

    def __init__(self, comm: Messages, api: str, kind: str, root: int | None = None) -> None:
        self.shared = Messages._get(comm)
        progress()
        self.api, self.kind = api, list(_plans).index(kind)
        self.rank, self.size = self.shared.rank, len(self.shared.members)
        if root is not None and not 0 <= root < self.size:
            raise Exception(ERR_ROOT)
        self.root = root
        self.others = [rank for rank in range(self.size) if rank != self.rank]

    def exchange(
        self,
        sends: dict[int, np.ndarray],
        receives: dict[int, np.ndarray | None],
        finish: Callable[[dict[int, np.ndarray]], Any],
        own_bytes: int = 0,
    ) -> Exchange:
        """Start the exchange. Ranks are those of the communicator."""
        shared = self.shared
        shared.collectives += 1
        members = shared.members
        return Exchange(
            self.api,
            shared.context + 1,
            -1 if self.root is None else members[self.root],
            # Ranks that call different collectives wait for each other, and so find a deadlock.
            shared.collectives * _TAGS + self.kind,
            (shared.context << 16) + shared.collectives,
            {members[rank]: data for rank, data in sends.items()},
            {members[rank]: into for rank, into in receives.items()},
            lambda came: finish({shared.number(member): data for member, data in came.items()}),
            own_bytes,
        )


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


@_plan
def _Barrier(comm: Messages, api: str) -> Operation:
    call = _Call(comm, api, "Barrier")
    return call.exchange(
        dict.fromkeys(call.others, _NO_BYTES), dict.fromkeys(call.others), lambda came: None
    )


@_plan
def _Bcast(comm: Messages, api: str, buf: Any, root: int = 0) -> Operation:
    call = _Call(comm, api, "Bcast", root)
    if call.rank == root:
        data = buffer(buf).bytes
        return call.exchange(dict.fromkeys(call.others, data), {}, lambda came: None, data.size)
    return call.exchange({}, {root: buffer(buf, writable=True).bytes}, lambda came: None)


@_plan
def _Gather(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, root: int = 0, *, same: bool = True
) -> Operation:
    call = _Call(comm, api, "Gather", root)
    if call.rank != root:
        data = buffer(sendbuf).bytes
        return call.exchange({root: data}, {}, lambda came: None, data.size)
    into = parts(recvbuf, call.size, writable=True, same=same)
    if not in_place(sendbuf):
        _copy(into[root], buffer(sendbuf).bytes)
    return call.exchange(
        {}, {r: into[r].bytes for r in call.others}, lambda came: None, into[root].bytes.size
    )


@_plan
def _Scatter(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, root: int = 0, *, same: bool = True
) -> Operation:
    call = _Call(comm, api, "Scatter", root)
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


@_plan
def _Allgather(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, *, same: bool = True
) -> Operation:
    call = _Call(comm, api, "Allgather")
    into = parts(recvbuf, call.size, writable=True, same=same)
    own = into[call.rank].bytes if in_place(sendbuf) else buffer(sendbuf).bytes
    if not in_place(sendbuf):
        _copy(into[call.rank], own)
    receives = {r: into[r].bytes for r in call.others}
    return call.exchange(dict.fromkeys(call.others, own), receives, lambda came: None, own.size)


@_plan
def _Alltoall(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, *, same: bool = True
) -> Operation:
    call = _Call(comm, api, "Alltoall")
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


@_plan
def _Reduce(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM, root: int = 0
) -> Operation:
    call = _Call(comm, api, "Reduce", root)
    if call.rank != root:
        data = buffer(sendbuf).bytes
        return call.exchange({root: data}, {}, lambda came: None, data.size)
    into, own = buffer(recvbuf, writable=True), _own_part(sendbuf, recvbuf)

    def finish(came: dict[int, np.ndarray]) -> None:
        _copy(into, _reduce_all(op, own, {**came, root: own.bytes}))

    return call.exchange({}, dict.fromkeys(call.others), finish, own.bytes.size)


def _reduce_all(op: Op, own: Buffer, came: dict[int, np.ndarray]) -> np.ndarray:
    return _reduced(op, [came[rank].view(own.dtype) for rank in sorted(came)]).view(np.uint8)


@_plan
def _Allreduce(comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM) -> Operation:
    call = _Call(comm, api, "Allreduce")
    into, own = buffer(recvbuf, writable=True), _own_part(sendbuf, recvbuf)

    def finish(came: dict[int, np.ndarray]) -> None:
        _copy(into, _reduce_all(op, own, {**came, call.rank: own.bytes}))

    return call.exchange(
        dict.fromkeys(call.others, own.bytes), dict.fromkeys(call.others), finish, own.bytes.size
    )


@_plan
def _Reduce_scatter(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = _SUM
) -> Operation:
    call = _Call(comm, api, "Reduce_scatter")
    own, into = _own_part(sendbuf, recvbuf), buffer(recvbuf, writable=True)
    if recvcounts is None:
        into_size = own.bytes.size // call.size if in_place(sendbuf) else into.bytes.size
        recvcounts = [into_size // own.dtype.itemsize] * call.size
    out = parts((own.elements, list(recvcounts)), call.size)
    mine = out[call.rank].bytes.copy()

    def finish(came: dict[int, np.ndarray]) -> None:
        _copy(into, _reduce_all(op, own, {**came, call.rank: mine}))

    sends = {r: out[r].bytes.copy() for r in call.others}
    return call.exchange(sends, dict.fromkeys(call.others), finish, own.bytes.size)


@_plan
def _Reduce_scatter_block(
    comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM
) -> Operation:
    return _Reduce_scatter(comm, api, sendbuf, recvbuf, None, op)


@_plan
def _Scan(comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM) -> Operation:
    return _prefix(_Call(comm, api, "Scan"), sendbuf, recvbuf, op, include=1)


@_plan
def _Exscan(comm: Messages, api: str, sendbuf: Any, recvbuf: Any, op: Op = _SUM) -> Operation:
    return _prefix(_Call(comm, api, "Exscan"), sendbuf, recvbuf, op, include=0)


def _prefix(call: _Call, sendbuf: Any, recvbuf: Any, op: Op, include: int) -> Operation:
    into, own = buffer(recvbuf, writable=True), _own_part(sendbuf, recvbuf)
    before = [r for r in call.others if r < call.rank]

    def finish(came: dict[int, np.ndarray]) -> None:
        if include or before:
            _copy(
                into, _reduce_all(op, own, {**came, **({call.rank: own.bytes} if include else {})})
            )

    sends = {r: own.bytes for r in call.others if r > call.rank}
    return call.exchange(sends, dict.fromkeys(before), finish, own.bytes.size)


# Objects. Each plan sends pickles and gets those of other ranks.


def _objects(
    call: _Call, sends: dict[int, Any], receives: list[int], finish: Callable[[dict[int, Any]], Any]
) -> Operation:
    packed = {rank: pickled(value) for rank, value in sends.items()}

    def unpickled(came: dict[int, np.ndarray]) -> Any:
        return finish({rank: pickle.loads(data) for rank, data in came.items()})

    return call.exchange(
        packed, dict.fromkeys(receives), unpickled, sum(one.size for one in packed.values())
    )


@_plan
def _barrier(comm: Messages, api: str) -> Operation:
    return _Barrier(comm, api)


@_plan
def _bcast(comm: Messages, api: str, obj: Any, root: int = 0) -> Operation:
    call = _Call(comm, api, "bcast", root)
    if call.rank == root:
        return _objects(call, dict.fromkeys(call.others, obj), [], lambda came: obj)
    return _objects(call, {}, [root], lambda came: came[root])


@_plan
def _gather(comm: Messages, api: str, sendobj: Any, root: int = 0) -> Operation:
    call = _Call(comm, api, "gather", root)
    if call.rank != root:
        return _objects(call, {root: sendobj}, [], lambda came: None)
    return _objects(call, {}, call.others, lambda came: _in_order(call, came, sendobj))


def _in_order(call: _Call, came: dict[int, Any], own: Any) -> list[Any]:
    return [own if rank == call.rank else came[rank] for rank in range(call.size)]


def _items(call: _Call, values: Any) -> list[Any]:
    values = list(values)
    if len(values) != call.size:
        raise ValueError(f"expecting {call.size} items, got {len(values)}")
    return values


@_plan
def _scatter(comm: Messages, api: str, sendobj: Any, root: int = 0) -> Operation:
    call = _Call(comm, api, "scatter", root)
    if call.rank != root:
        return _objects(call, {}, [root], lambda came: came[root])
    values = _items(call, sendobj)
    return _objects(call, {r: values[r] for r in call.others}, [], lambda came: values[root])


@_plan
def _allgather(comm: Messages, api: str, sendobj: Any) -> Operation:
    call = _Call(comm, api, "allgather")
    return _objects(
        call,
        dict.fromkeys(call.others, sendobj),
        call.others,
        lambda came: _in_order(call, came, sendobj),
    )


@_plan
def _alltoall(comm: Messages, api: str, sendobj: Any) -> Operation:
    call = _Call(comm, api, "alltoall")
    values = _items(call, sendobj)
    sends = {r: values[r] for r in call.others}
    return _objects(call, sends, call.others, lambda came: _in_order(call, came, values[call.rank]))


def _combined(op: Op, values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = op(total, value)
    return total


@_plan
def _reduce(comm: Messages, api: str, sendobj: Any, op: Op = _SUM, root: int = 0) -> Operation:
    call = _Call(comm, api, "reduce", root)
    if call.rank != root:
        return _objects(call, {root: sendobj}, [], lambda came: None)
    return _objects(
        call, {}, call.others, lambda came: _combined(op, _in_order(call, came, sendobj))
    )


@_plan
def _allreduce(comm: Messages, api: str, sendobj: Any, op: Op = _SUM) -> Operation:
    call = _Call(comm, api, "allreduce")
    sends = dict.fromkeys(call.others, sendobj)
    return _objects(
        call, sends, call.others, lambda came: _combined(op, _in_order(call, came, sendobj))
    )


@_plan
def _scan(comm: Messages, api: str, sendobj: Any, op: Op = _SUM) -> Operation:
    call = _Call(comm, api, "scan")
    sends = {r: sendobj for r in call.others if r > call.rank}
    before = [r for r in call.others if r < call.rank]
    return _objects(
        call, sends, before, lambda came: _combined(op, [*(came[r] for r in before), sendobj])
    )


@_plan
def _exscan(comm: Messages, api: str, sendobj: Any, op: Op = _SUM) -> Operation:
    call = _Call(comm, api, "exscan")
    sends = {r: sendobj for r in call.others if r > call.rank}
    before = [r for r in call.others if r < call.rank]
    return _objects(
        call,
        sends,
        before,
        lambda came: _combined(op, [came[r] for r in before]) if before else None,
    )


class Collectives(Messages):
    """The methods of communicators that all ranks call together."""


def _add(name: str, plan: Callable[..., Operation], **fixed: Any) -> None:
    signature = inspect.signature(plan)
    comm, _, *rest = signature.parameters.values()
    signature = signature.replace(
        parameters=[comm.replace(name="self"), *(p for p in rest if p.kind is not p.KEYWORD_ONLY)]
    )
    value = name[0].islower()
    small = name[0].lower() + name[1:]

    def call(self: Messages, *args: Any, **kwargs: Any) -> Any:
        result = wait(plan(self, name, *args, **kwargs, **fixed)).value
        return result if value else None

    def begin(self: Messages, *args: Any, **kwargs: Any) -> Request:
        return Messages._request(self, plan(self, f"I{small}", *args, **kwargs, **fixed))

    def prepare(self: Messages, *args: Any, **kwargs: Any) -> Prequest:
        number = Messages._get(self).number
        return Prequest._prepared(lambda: plan(self, f"I{small}", *args, **kwargs, **fixed), number)

    methods = {name: call} if value else {name: call, f"I{small}": begin, f"{name}_init": prepare}
    for own, method in methods.items():
        method.__name__, method.__signature__ = own, signature
        setattr(Collectives, own, method)


for _name, _function in list(_plans.items()):
    _add(_name, _function)
for _name in ("Gather", "Scatter", "Allgather", "Alltoall"):
    _add(f"{_name}v", _plans[_name], same=False)
