"""Reads mpi4py's notations for buffers: arrays, and lists [array, counts, displacements, type]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py._values import ERR_BUFFER, ERR_COUNT, IN_PLACE, TYPES, Datatype, Exception

_NOTHING = np.empty(0, np.uint8)


@dataclass
class Buffer:
    """Memory as `bytes`, a one-dimensional array of uint8, with elements of `dtype`."""

    bytes: np.ndarray
    dtype: np.dtype

    @property
    def elements(self) -> np.ndarray:
        return self.bytes.view(self.dtype)

    def part(self, first: int, count: int) -> "Buffer":
        """Return `count` elements, starting at element `first`."""
        size = self.dtype.itemsize
        if first < 0 or count < 0 or (first + count) * size > self.bytes.size:
            raise Exception(ERR_COUNT)
        return Buffer(self.bytes[first * size : (first + count) * size], self.dtype)

    def equal_parts(self, number: int) -> list["Buffer"]:
        count, left = divmod(self.bytes.size, number * self.dtype.itemsize)
        if left:
            raise ValueError(
                f"message: buffer length {self.elements.size} is not multiple of "
                f"required block size {number}"
            )
        return [self.part(i * count, count) for i in range(number)]


def _memory(value: Any, writable: bool) -> tuple[np.ndarray, np.dtype]:
    if value is None:
        return _NOTHING, _NOTHING.dtype
    if isinstance(value, int) and not isinstance(value, np.generic):
        raise Exception(ERR_BUFFER)  # MPI.IN_PLACE or MPI.BOTTOM where it has no meaning
    array = value if isinstance(value, np.ndarray) else np.asarray(memoryview(value))
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        array = array.T
    if not array.flags.c_contiguous:
        raise ValueError("ndarray is not contiguous")
    if writable and not array.flags.writeable:
        raise ValueError("buffer source array is read-only")
    if array.dtype.hasobject:
        raise KeyError(array.dtype.char)
    return array.reshape(-1).view(np.uint8) if array.size else _NOTHING, array.dtype


def _split(spec: Any) -> tuple[Any, Any, Any, Datatype | None]:
    """Return memory, counts, displacements, and datatype of a buffer's notation."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 1 <= len(spec) <= 4:
        raise ValueError(f"message: expecting 2 to 4 items, got {len(spec)}")
    memory, *rest = spec
    kind = None
    if rest and isinstance(rest[-1], Datatype | str):
        kind = rest.pop()
        kind = (TYPES.get(kind) or Datatype.fromcode(kind)) if isinstance(kind, str) else kind
    counts = rest[0] if rest else None
    displacements = rest[1] if len(rest) > 1 else None
    if isinstance(counts, tuple) and len(counts) == 2 and displacements is None:
        counts, displacements = counts
    return memory, counts, displacements, kind


def buffer(spec: Any, *, writable: bool = False) -> Buffer:
    """Return the buffer of a message."""
    memory, count, displacement, kind = _split(spec)
    data, dtype = _memory(memory, writable)
    whole = Buffer(data, kind._dtype if kind else dtype)
    size = whole.dtype.itemsize
    if count is None and displacement is None:
        if data.size % size:
            raise ValueError(
                f"message: buffer length {data.size} is not a multiple of datatype extent {size}"
            )
        return whole
    first = int(displacement or 0)
    return whole.part(first, data.size // size - first if count is None else int(count))


def parts(spec: Any, number: int, *, writable: bool = False, same: bool = False) -> list[Buffer]:
    """Return the buffers of the `number` parts of a collective.

    Args:
        same: True if a single count is the size of each part, instead of the whole.
    """
    memory, counts, displacements, kind = _split(spec)
    data, dtype = _memory(memory, writable)
    whole = Buffer(data, kind._dtype if kind else dtype)
    if counts is None:
        return whole.equal_parts(number)
    if not isinstance(counts, Sequence | np.ndarray):
        each = int(counts) if same else int(counts) // number
        return [whole.part(i * each, each) for i in range(number)]
    if displacements is None:
        displacements = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return [
        whole.part(int(first), int(count))
        for first, count in zip(displacements, counts, strict=True)
    ]


def in_place(spec: Any) -> bool:
    """Return True if `spec` is `MPI.IN_PLACE`."""
    return spec is IN_PLACE
