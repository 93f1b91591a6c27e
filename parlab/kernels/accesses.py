"""What kernels load and store, number by number: in the interpreter, which asks for each address.

    with recorded(arena) as seen:
        softmax(x)
    seen.outside                    # the first access that leaves every tensor, or None
    seen.loaded, seen.stored        # bytes
    seen.stored_in(result)          # which of its elements kernels have written
    seen.kept(result)               # which of those still are what was stored

An access outside is not done: a load gives nothing, a store changes nothing, so that no kernel can
end the process. Where a load has a mask and no `other`, floats that it leaves out are NaN: on a GPU
they are anything. There nothing of all this is known, and `seen.known` is False; the guards of
`buffers` are what is left.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

from parlab.kernels.asking import INTERPRETED
from parlab.kernels.buffers import GUARD, Arena


@dataclass(frozen=True)
class Outside:
    """An access that leaves every tensor.

    Attributes:
        stores: whether it is a store, else a load.
        count: elements of that one load or store that are outside.
        buffer: the guarded buffer whose guard it meets, if it is one.
        distance: elements from that buffer's first element.
        program: which program did it, of the grid's three axes.
    """

    stores: bool
    count: int
    buffer: str | None
    distance: int
    program: tuple[int, ...]


@dataclass
class Accesses:
    """What the kernels did."""

    known: bool = INTERPRETED
    loaded: int = 0
    stored: int = 0
    outside: Outside | None = None
    undefined: bool = False  # some load had masked floats, and no `other` for them
    _stores: list[tuple[np.ndarray, int, int]] = field(default_factory=list)
    _loads: list[tuple[np.ndarray, int]] = field(default_factory=list)
    _values: list[tuple[np.ndarray, np.ndarray | None]] = field(default_factory=list)
    first_launch: list[torch.Tensor] = field(default_factory=list)  # the arena's memory, then

    def stored_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Whether each element of a tensor was written by a kernel; its shape, bool."""
        written = [addresses for addresses, _, _ in self._stores]
        return _elements_in(tensor, written)

    def programs_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Which program has stored each element last, on a grid of one axis; −1 where none has."""
        mine = _addresses(tensor)
        found = np.full(mine.shape, -1)
        for addresses, program, _ in self._stores:
            found[np.isin(mine, addresses)] = program
        return torch.from_numpy(found)

    def times_stored(self, tensor: torch.Tensor) -> int:
        """How many stores went to elements of a tensor, of all programs together."""
        mine = _addresses(tensor)
        return sum(int(np.isin(addresses, mine).sum()) for addresses, _, _ in self._stores)

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """Whether each element is, bit by bit, what a kernel stored there last; its shape, bool.

        True as well where none has, and where the last was an atomic operation.
        """
        mine = _addresses(tensor)
        now = _bits(tensor.detach().contiguous().view(_integers(tensor)).numpy(force=True))
        last = now.copy()
        for addresses, values in self._values:
            order = np.argsort(addresses)
            place = np.minimum(np.searchsorted(addresses, mine, sorter=order), len(order) - 1)
            here = addresses[order[place]] == mine
            if values is None:
                last[here] = now[here]
            elif values.itemsize == now.itemsize:
                last[here] = _bits(values)[order[place[here]]]
        return torch.from_numpy(last == now)

    def loaded_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """Whether each element of a tensor was read by a kernel; its shape, bool."""
        return _elements_in(tensor, [addresses for addresses, _ in self._loads])

    def stored_twice(self) -> int:
        """How many addresses more than one program of a launch has written."""
        launches = {launch for _, _, launch in self._stores}
        return sum(self._stored_twice_in(launch) for launch in launches)

    def _stored_twice_in(self, wanted: int) -> int:
        of_programs: dict[int, list[np.ndarray]] = {}
        for addresses, program, launch in self._stores:
            if launch == wanted:
                of_programs.setdefault(program, []).append(addresses)
        each = [np.unique(np.concatenate(addresses)) for addresses in of_programs.values()]
        _, programs = np.unique(np.concatenate(each), return_counts=True)
        return int((programs > 1).sum())


def _addresses(tensor: torch.Tensor) -> np.ndarray:
    wanted = torch.zeros(tensor.shape, dtype=torch.int64)
    for axis, (n, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(n) * stride * tensor.element_size()
        wanted += steps.view([-1 if i == axis else 1 for i in range(tensor.dim())])
    return wanted.numpy().astype(np.uint64) + np.uint64(tensor.data_ptr())


def _integers(tensor: torch.Tensor) -> torch.dtype:
    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}").reshape(values.shape)


def _elements_in(tensor: torch.Tensor, addresses: list[np.ndarray]) -> torch.Tensor:
    every = np.concatenate([np.zeros(0, np.uint64), *addresses])
    return torch.from_numpy(np.isin(_addresses(tensor), every))


class _Memory:
    """Which addresses are elements of a tensor: of the arena's, or of any other that is alive."""

    def __init__(self, arena: Arena) -> None:
        self.buffers = sorted(arena.buffers, key=lambda buffer: buffer.whole.data_ptr())
        self.starts = np.array([b.whole.data_ptr() for b in self.buffers], np.uint64)
        self.ends = np.array([b.whole.data_ptr() + b.whole.nbytes for b in self.buffers], np.uint64)
        self.sizes = np.array([b.whole.element_size() for b in self.buffers], np.uint64)
        lengths = [len(b.whole) for b in self.buffers]
        self.first = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
        self.inside = np.concatenate(
            [np.zeros(0, bool), *(b.inside.numpy(force=True) for b in self.buffers)]
        )
        self.others: list[tuple[int, int]] = []
        self.found: list[weakref.ref] = []

    def launch(self, arguments: list[Any]) -> None:
        """A kernel begins: what it gets is known, and what was found before, if it is alive."""
        self.found = [tensor for tensor in self.found if tensor() is not None]
        self.others = [_extent(a) for a in arguments if isinstance(a, torch.Tensor)]
        self.others += [_extent(t) for t in (tensor() for tensor in self.found) if t is not None]

    def allowed(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which addresses are an element's; and the number of the buffer around each, or -1."""
        if not len(self.buffers):
            return self._of_others(addresses), np.full(addresses.shape, -1)
        place = np.searchsorted(self.starts, addresses, "right").astype(np.int64) - 1
        at = np.maximum(place, 0)
        within = (place >= 0) & (addresses < self.ends[at])
        offset = np.where(within, addresses - self.starts[at], 0).astype(np.uint64)
        element = self.first[at] + (offset // self.sizes[at]).astype(np.int64)
        allowed = within & self.inside[np.where(within, element, 0)]
        allowed &= offset % self.sizes[at] == 0
        if not within.all():
            allowed |= ~within & self._of_others(addresses)
        return allowed, np.where(within, at, -1)

    def _of_others(self, addresses: np.ndarray) -> np.ndarray:
        found = self._in_others(addresses)
        for generation in (0, 1, 2):  # of Python's objects, the youngest first: they are few
            if found.all():
                break
            tensors = _plain_tensors(gc.get_objects(generation))
            self.found += [weakref.ref(tensor) for tensor in tensors]
            self.others += [_extent(tensor) for tensor in tensors]
            found = self._in_others(addresses)
        return found

    def _in_others(self, addresses: np.ndarray) -> np.ndarray:
        found = np.zeros(addresses.shape, bool)
        low, high = int(addresses.min()), int(addresses.max())
        guarded = {buffer.whole.data_ptr() for buffer in self.buffers}
        for start, end in self.others:
            if start <= high and low < end and start not in guarded:
                found |= (addresses >= start) & (addresses < end)
        return found


def _plain_tensors(objects: list[Any]) -> list[torch.Tensor]:
    # Kinds first: of hundreds of thousands of objects there are few kinds.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    return [one for one in objects if type(one) in kinds and one.device.type == "cpu"]


def _undefined(pointers: Any) -> TensorHandle | None:
    """NaN where a load gives nothing that is defined; None for numbers that have none."""
    dtype = pointers.get_element_ty()
    if dtype not in (tl.float16, tl.bfloat16, tl.float32, tl.float64):
        return None
    # The interpreter has bfloat16 as the bits of it.
    kind = np.uint16 if dtype == tl.bfloat16 else np.dtype(f"f{dtype.primitive_bitwidth // 8}")
    return TensorHandle(
        np.full(pointers.data.shape, 0x7FC0 if kind == np.uint16 else np.nan, kind), dtype
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The storage's addresses: a kernel may get the address of a view and use all of its memory."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return 0, 0


@contextmanager
def recorded(arena: Arena) -> Iterator[Accesses]:
    """Watch the memory that kernels use within; on a GPU it sees nothing."""
    seen = Accesses()
    if not INTERPRETED:
        yield seen
        return
    memory = _Memory(arena)
    originals = {
        (owner, name): getattr(owner, name)
        for owner, name in (
            (InterpreterBuilder, "create_masked_load"),
            (InterpreterBuilder, "create_masked_store"),
            (InterpreterBuilder, "create_atomic_rmw"),
            (InterpretedFunction, "run"),
        )
    }
    load, store, atomic, run = originals.values()
    launched = 0

    def watched_run(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal launched
        launched += 1
        if launched == 1:
            seen.first_launch = [buffer.whole.clone() for buffer in arena.buffers]
        memory.launch([*arguments, *named.values()])
        return run(self, *arguments, **named)

    def look(builder: Any, pointers: Any, mask: Any, stores: bool) -> Any:
        """The mask without what is outside; notes the rest."""
        wanted = np.broadcast_to(mask.data, pointers.data.shape)
        addresses = pointers.data[wanted]
        if not addresses.size:
            return mask
        allowed, place = memory.allowed(addresses)
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        if stores:
            seen.stored += size * addresses.size
            x, y, z = builder.grid_idx
            program = (z * 2**20 + y) * 2**20 + x
            seen._stores.append((addresses, program, launched))
        else:
            seen.loaded += size * addresses.size
            seen._loads.append((addresses, launched))
        if allowed.all():
            return mask
        if seen.outside is None:
            first = int(np.argmin(allowed))
            buffer = memory.buffers[place[first]] if place[first] >= 0 else None
            distance = 0
            if buffer is not None:
                distance = int(addresses[first]) - buffer.whole.data_ptr()
                distance = distance // buffer.whole.element_size() - GUARD
            seen.outside = Outside(
                stores,
                int((~allowed).sum()),
                buffer.name if buffer else None,
                distance,
                tuple(builder.grid_idx),
            )
        kept = wanted.copy()
        kept[wanted] = allowed
        return TensorHandle(kept, tl.int1)

    def watched_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None and not mask.data.all():
            other = _undefined(pointers)
            seen.undefined = seen.undefined or other is not None
        return load(self, pointers, look(self, pointers, mask, False), other, *rest)

    def note(pointers: Any, values: np.ndarray | None, mask: Any) -> None:
        wanted = np.broadcast_to(mask.data, pointers.data.shape)
        if wanted.any():
            if values is not None:
                values = np.broadcast_to(values, pointers.data.shape)[wanted]
            seen._values.append((pointers.data[wanted], values))

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        note(pointers, value.data, mask)
        return store(self, pointers, value, look(self, pointers, mask, True), *rest)

    def watched_atomic(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        note(pointers, None, mask)
        return atomic(self, op, pointers, value, look(self, pointers, mask, True), *rest)

    _set(originals, (watched_load, watched_store, watched_atomic, watched_run))
    try:
        yield seen
    finally:
        _set(originals, originals.values())


def _set(places: Any, functions: Any) -> None:
    for (owner, name), function in zip(places, functions, strict=True):
        setattr(owner, name, function)
