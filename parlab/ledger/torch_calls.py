"""Records calls of torch.distributed.

Calls of C++ code and libraries pass through torch's dispatcher, where this module records them.
Calls on a `torch_mpi.group.MPIGroup` do not, so the group reports them to `observers`.
"""

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from parlab.ledger.calls import Call, without_unused
from parlab.runtime.torch_mpi.observers import observers

Enter = Callable[[Call], None]


class _Kind(NamedTuple):
    """An operation, and the names of the arguments with the data that it sends and receives."""

    op: str
    sent: str
    received: str


# By the operation's name without trailing underscores. "return" means the result of the call.
_KINDS = {
    "allreduce": _Kind("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced": _Kind("all_reduce", "tensors", "tensors"),
    "reduce": _Kind("reduce", "tensors", "tensors"),
    "broadcast": _Kind("broadcast", "tensors", "tensors"),
    "gather": _Kind("gather", "input_tensors", "output_tensors"),
    "scatter": _Kind("scatter", "input_tensors", "output_tensors"),
    "allgather": _Kind("all_gather", "input_tensors", "output_tensors"),
    "allgather_coalesced": _Kind("all_gather", "input_list", "output_lists"),
    "_allgather_base": _Kind("all_gather", "input_tensor", "output_tensor"),
    "allgather_into_tensor_coalesced": _Kind("all_gather", "inputs", "outputs"),
    "reduce_scatter": _Kind("reduce_scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base": _Kind("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced": _Kind("reduce_scatter", "inputs", "outputs"),
    "alltoall": _Kind("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base": _Kind("all_to_all", "input", "output"),
    "barrier": _Kind("barrier", "", ""),
    "monitored_barrier": _Kind("barrier", "", ""),
    "send": _Kind("send", "tensors", ""),
    "recv": _Kind("recv", "", "tensors"),
    "recv_any_source": _Kind("recv", "", "tensors"),
    # Names of MPIGroup's methods, if they are different.
    "all_gather_single": _Kind("all_gather", "input_tensor", "output_tensor"),
    "all_gather_single_coalesced": _Kind("all_gather", "input_tensors", "output_tensors"),
    "reduce_scatter_single": _Kind("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_single_coalesced": _Kind("reduce_scatter", "input_tensors", "output_tensors"),
    "all_to_all_single": _Kind("all_to_all", "input_tensor", "output_tensor"),
}
_FUNCTIONAL_KINDS = {
    "all_reduce": _Kind("all_reduce", "input", "return"),
    "all_reduce_coalesced": _Kind("all_reduce", "inputs", "return"),
    "broadcast": _Kind("broadcast", "input", "return"),
    "all_gather_into_tensor": _Kind("all_gather", "input", "return"),
    "all_gather_into_tensor_out": _Kind("all_gather", "input", "return"),
    "all_gather_into_tensor_coalesced": _Kind("all_gather", "inputs", "return"),
    "reduce_scatter_tensor": _Kind("reduce_scatter", "input", "return"),
    "reduce_scatter_tensor_out": _Kind("reduce_scatter", "input", "return"),
    "reduce_scatter_tensor_coalesced": _Kind("reduce_scatter", "inputs", "return"),
    "all_to_all_single": _Kind("all_to_all", "input", "return"),
    "isend": _Kind("isend", "tensor", ""),
    "irecv": _Kind("irecv", "", "tensor"),
}
BATCH = "batch_p2p_ops"  # a functional operation with several messages
_TABLES = {"c10d": _KINDS, "_c10d_functional": _FUNCTIONAL_KINDS}

# True in a thread while an operation runs. Calls that the operation itself makes are part of it.
_inside = threading.local()


@contextlib.contextmanager
def recording(enter: Enter) -> Iterator[None]:
    """Call `enter` for each call of torch.distributed.

    Calls through the dispatcher count in this thread and in the threads of its backward passes.
    Calls on an MPIGroup count in all threads.
    """

    def observe(
        group: Any, name: str, args: tuple[Any, ...], result: Any, start: float, end: float
    ) -> None:
        if getattr(_inside, "operation", False):
            return
        enter(group_call(group, name, args, result, start, end))

    observers.append(observe)
    try:
        with _Recorder(enter):
            yield
    finally:
        observers.remove(observe)


def group_call(
    group: Any,
    name: str,
    args: tuple[Any, ...],
    result: Any,
    start: float,
    end: float | None,
) -> Call:
    """Return the entry for a call of an MPIGroup's method with `args`."""
    named = dict(zip(_parameters(type(group), name), args, strict=False))
    opts = named.get("opts")
    if opts is not None and hasattr(opts, "rootRank"):
        named["root_rank"] = opts.rootRank
    return _call(name, _KINDS[name], named, result, group, start, end)


class _Recorder(TorchDispatchMode):
    def __init__(self, enter: Enter) -> None:
        super().__init__()
        self._enter = enter

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = _TABLES.get(func.namespace, {}).get(func._opname.rstrip("_"))
        is_batch = (func.namespace, func._opname) == ("_c10d_functional", BATCH)
        if kind is None and not is_batch:
            if any(_is_dtensor(t) for t in types):
                # torch replaces the call with collectives on ordinary tensors, recorded here.
                return NotImplemented
            return func(*args, **kwargs)
        outer, _inside.operation = getattr(_inside, "operation", False), True
        try:
            start = time.perf_counter()
            result = func(*args, **kwargs)
            end = time.perf_counter()
        finally:
            _inside.operation = outer
        names = [argument.name for argument in func._schema.arguments]
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        group = _group(named)
        for of_kind, arguments in _messages(named) if is_batch else [(kind, named)]:
            self._enter(_call(func._opname, of_kind, arguments, result, group, start, end))
        return result


def _messages(batch: dict[str, Any]) -> Iterator[tuple[_Kind, dict[str, Any]]]:
    """Yield the kind and the arguments of each message of a batch."""
    lists = (batch[name] for name in ("op_list", "peer_list", "tag_list", "tensors"))
    for op, peer, tag, tensor in zip(*lists, strict=True):
        peer_name = "dst" if op == "isend" else "src"
        yield _FUNCTIONAL_KINDS[op], {"tensor": tensor, "tag": tag, peer_name: peer}


def _is_dtensor(kind: type) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # loaded if any DTensor exists
    return module is not None and issubclass(kind, module.DTensor)


@functools.cache
def _parameters(kind: type, name: str) -> list[str]:
    return list(inspect.signature(getattr(kind, name)).parameters)[1:]


def _group(named: dict[str, Any]) -> Any:
    if "process_group" in named:
        return dist.ProcessGroup.unbox(named["process_group"])
    name = named.get("group_name")
    if isinstance(name, str):
        return dist.distributed_c10d._resolve_process_group(name)
    return name


def _call(
    name: str,
    kind: _Kind,
    named: dict[str, Any],
    result: Any,
    group: Any,
    start: float,
    end: float | None,
) -> Call:
    root = named.get("root_rank")
    if kind.op == "broadcast" and root is None:
        root = named.get("src")
    sent, received = (
        _bytes(result if argument == "return" else named.get(argument))
        for argument in (kind.sent, kind.received)
    )
    sent, received = without_unused(kind.op, root == group.rank(), sent, received)
    receives = kind.op in ("recv", "irecv")
    source = named.get("src") if receives else None
    return Call(
        api=f"c10d.{name.rstrip('_')}",
        op=kind.op,
        bytes_sent=sent,
        bytes_received=received,
        size=group.size(),
        start=start,
        end=end,
        to=named.get("dst"),
        source=None if source is None or source < 0 else source,
        root=root,
        tag=named.get("tag"),
        thread=threading.current_thread().name,
    )


def _bytes(value: Any) -> int:
    """Return the bytes of all tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_bytes(item) for item in value)
    return 0
