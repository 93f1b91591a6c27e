"""Counts the bytes of mpi4py's arguments: buffers in all their notations, and objects."""

from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI


def buffer_bytes(spec: Any, blocks: int = 1) -> int:
    """Return the bytes of a buffer, and 0 for None and `MPI.IN_PLACE`.

    A buffer is an array, or a list [array, counts, displacements, types], some of which may be
    missing. A single count is the size of each of `blocks` equal blocks.
    """
    if spec is None or spec is MPI.IN_PLACE or spec is MPI.BOTTOM:
        return 0
    if not isinstance(spec, list | tuple):
        return _memory_bytes(spec)
    memory, *rest = spec
    kind = rest.pop() if rest and _is_type(rest[-1]) else None
    counts = rest[0] if rest else None
    if isinstance(counts, tuple):  # (counts, displacements)
        counts = counts[0]
    if counts is None:
        return _memory_bytes(memory)
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        return sum(n * _type(k).Get_size() for n, k in zip(counts, kind, strict=True))
    item = _type(kind).Get_size() if kind is not None else _view(memory).itemsize
    return item * int(sum(counts) if hasattr(counts, "__len__") else blocks * counts)


def _is_type(value: Any) -> bool:
    if isinstance(value, list | tuple) and value:
        return _is_type(value[0])
    return isinstance(value, MPI.Datatype | str)


def _type(kind: MPI.Datatype | str) -> MPI.Datatype:
    return MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind


def _view(memory: Any) -> Any:
    return memory if hasattr(memory, "nbytes") else memoryview(memory)


def _memory_bytes(memory: Any) -> int:
    return 0 if memory is None else int(_view(memory).nbytes)


def object_bytes(value: Any) -> int:
    """Return the number of bytes that mpi4py sends for a Python object."""
    return len(MPI.pickle.dumps(value))


def objects_bytes(values: Iterable[Any] | None) -> int:
    """Return the total bytes of several objects, each pickled on its own."""
    return 0 if values is None else sum(map(object_bytes, values))
