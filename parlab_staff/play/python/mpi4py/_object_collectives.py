"""Collectives of Python objects, such as `allreduce`. Ranks send each other pickles."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py._comm import Messages, pickled
from mpi4py._exchange import Call, plan
from mpi4py._operations import Operation
from mpi4py._values import OPS, Op

_SUM = OPS["SUM"]


def _objects(
    call: Call, sends: dict[int, Any], receives: list[int], finish: Callable[[dict[int, Any]], Any]
) -> Operation:
    packed = {rank: pickled(value) for rank, value in sends.items()}

    def unpickled(came: dict[int, np.ndarray]) -> Any:
        return finish({rank: pickle.loads(data) for rank, data in came.items()})

    return call.exchange(
        packed, dict.fromkeys(receives), unpickled, sum(one.size for one in packed.values())
    )


@plan
def _barrier(comm: Messages, api: str) -> Operation:
    call = Call(comm, api, "barrier")
    return _objects(call, dict.fromkeys(call.others), call.others, lambda came: None)


@plan
def _bcast(comm: Messages, api: str, obj: Any, root: int = 0) -> Operation:
    call = Call(comm, api, "bcast", root)
    if call.rank == root:
        return _objects(call, dict.fromkeys(call.others, obj), [], lambda came: obj)
    return _objects(call, {}, [root], lambda came: came[root])


@plan
def _gather(comm: Messages, api: str, sendobj: Any, root: int = 0) -> Operation:
    call = Call(comm, api, "gather", root)
    if call.rank != root:
        return _objects(call, {root: sendobj}, [], lambda came: None)
    return _objects(call, {}, call.others, lambda came: _in_order(call, came, sendobj))


def _in_order(call: Call, came: dict[int, Any], own: Any) -> list[Any]:
    return [own if rank == call.rank else came[rank] for rank in range(call.size)]


def _items(call: Call, values: Any) -> list[Any]:
    values = list(values)
    if len(values) != call.size:
        raise ValueError(f"expecting {call.size} items, got {len(values)}")
    return values


@plan
def _scatter(comm: Messages, api: str, sendobj: Any, root: int = 0) -> Operation:
    call = Call(comm, api, "scatter", root)
    if call.rank != root:
        return _objects(call, {}, [root], lambda came: came[root])
    values = _items(call, sendobj)
    return _objects(call, {r: values[r] for r in call.others}, [], lambda came: values[root])


@plan
def _allgather(comm: Messages, api: str, sendobj: Any) -> Operation:
    call = Call(comm, api, "allgather")
    return _objects(
        call,
        dict.fromkeys(call.others, sendobj),
        call.others,
        lambda came: _in_order(call, came, sendobj),
    )


@plan
def _alltoall(comm: Messages, api: str, sendobj: Any) -> Operation:
    call = Call(comm, api, "alltoall")
    values = _items(call, sendobj)
    sends = {r: values[r] for r in call.others}
    return _objects(call, sends, call.others, lambda came: _in_order(call, came, values[call.rank]))


def _combined(op: Op, values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = op(total, value)
    return total


@plan
def _reduce(comm: Messages, api: str, sendobj: Any, op: Op = _SUM, root: int = 0) -> Operation:
    call = Call(comm, api, "reduce", root)
    if call.rank != root:
        return _objects(call, {root: sendobj}, [], lambda came: None)
    return _objects(
        call, {}, call.others, lambda came: _combined(op, _in_order(call, came, sendobj))
    )


@plan
def _allreduce(comm: Messages, api: str, sendobj: Any, op: Op = _SUM) -> Operation:
    call = Call(comm, api, "allreduce")
    sends = dict.fromkeys(call.others, sendobj)
    return _objects(
        call, sends, call.others, lambda came: _combined(op, _in_order(call, came, sendobj))
    )


@plan
def _scan(comm: Messages, api: str, sendobj: Any, op: Op = _SUM) -> Operation:
    call = Call(comm, api, "scan")
    sends = {r: sendobj for r in call.others if r > call.rank}
    before = [r for r in call.others if r < call.rank]
    return _objects(
        call, sends, before, lambda came: _combined(op, [*(came[r] for r in before), sendobj])
    )


@plan
def _exscan(comm: Messages, api: str, sendobj: Any, op: Op = _SUM) -> Operation:
    call = Call(comm, api, "exscan")
    sends = {r: sendobj for r in call.others if r > call.rank}
    before = [r for r in call.others if r < call.rank]
    return _objects(
        call,
        sends,
        before,
        lambda came: _combined(op, [came[r] for r in before]) if before else None,
    )
