"""Records what kernels load and store, element by element, in the interpreter.

    with recorded(arena) as accesses:
        softmax(x)
    accesses.outside                # the first access outside of all tensors, or None
    accesses.loaded, accesses.stored    # bytes
    accesses.stored_in(result)      # which of its elements kernels have written
    accesses.kept(result)           # which elements still have the stored values

Accesses outside of all tensors are not carried out, so that no kernel can crash the process: a load
returns nothing, and a store changes nothing. If a load has a mask and no `other`, the floats that
it excludes are NaN. (On a GPU, they are undefined.) On a GPU, nothing is recorded and `known` is
False: only the guards of `buffers` show wrong accesses.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

from parlab.kernels.addresses import Memory, addresses_of
from parlab.kernels.buffers import Arena
from parlab.kernels.mode import INTERPRETED
from parlab.kernels.stores import AllStores, Store, among, bits, joined


@dataclass(frozen=True)
class Outside:
    """An access outside of all tensors.

    Attributes:
        stores: True for a store, False for a load.
        count: the number of elements of this access that are outside.
        buffer: the guarded buffer whose guard it touches, or None.
        distance: elements from that buffer's first element.
        program: the program's position on the three axes of the grid.
        element_bytes: the size of an element, from the pointer's type.
    """

    stores: bool
    count: int
    buffer: str | None
    distance: int
    program: tuple[int, ...]
    element_bytes: int


@dataclass
class Accesses:
    """The recorded accesses of kernels.

    Attributes:
        known: True if accesses are recorded, which is not possible on a GPU.
        loaded, stored: bytes.
        outside: the first access outside of all tensors.
        undefined: True if a load had masked floats and no `other`.
        at_launch: the arena's memory when the first kernel began.
    """

    known: bool = INTERPRETED
    loaded: int = 0
    stored: int = 0
    outside: Outside | None = None
    undefined: bool = False
    at_launch: list[torch.Tensor] = field(default_factory=list)
    _stores: list[Store] = field(default_factory=list)
    _loads: list[np.ndarray] = field(default_factory=list)
    _together: AllStores | None = None

    @property
    def largest_load(self) -> int:
        """The largest number of elements that a single load read."""
        return max((addresses.size for addresses in self._loads), default=0)

    def stored_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return whether a kernel has written each element, in the tensor's shape."""
        return torch.from_numpy(self._all_stores().last(addresses_of(tensor)) >= 0)

    def loaded_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return whether a kernel has read each element, in the tensor's shape."""
        return torch.from_numpy(among(addresses_of(tensor), joined(self._loads)))

    def programs_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return which program stored each element last, as z · 2⁴⁰ + y · 2²⁰ + x, or −1."""
        stores = self._all_stores()
        last = stores.last(addresses_of(tensor))
        programs = np.append(stores.programs, -1)  # the last one is for elements without a store
        return torch.from_numpy(programs[last])

    def times_stored(self, tensor: torch.Tensor) -> int:
        """Return how many stores of all programs went to elements of a tensor."""
        return int(among(self._all_stores().addresses, addresses_of(tensor)).sum())

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return whether each element still has the bits that a kernel stored there last.

        This is also True if no kernel stored it, or if the last store was an atomic operation.
        """
        integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        same_bits = tensor.detach().contiguous().view(integers[tensor.element_size()])
        now = bits(same_bits.numpy(force=True))
        if not self._stores:
            return torch.ones(tensor.shape, dtype=torch.bool)
        stores = self._all_stores()
        last = stores.last(addresses_of(tensor))
        is_known = (last >= 0) & (stores.sizes[last] == tensor.element_size())
        return torch.from_numpy(~is_known | (stores.values[last] == now))

    def stored_twice(self) -> int:
        """Return how many addresses more than one program of a launch has written."""
        return self._all_stores().twice

    def _all_stores(self) -> AllStores:
        if self._together is None or self._together.count != len(self._stores):
            self._together = AllStores(self._stores)
        return self._together


class _Recorder:
    """Records the interpreter's loads, stores, and launches.

    Each method gets the interpreter's own function, and its arguments.
    """

    def __init__(self, arena: Arena) -> None:
        self.accesses, self._arena, self._memory = Accesses(), arena, Memory(arena)
        self._launches = 0

    def run(self, run: Callable, kernel: Any, *arguments: Any, **named: Any) -> Any:
        self._launches += 1
        if self._launches == 1:
            self.accesses.at_launch = [buffer.whole.clone() for buffer in self._arena.buffers]
        self._memory.launch([*arguments, *named.values()])
        return run(kernel, *arguments, **named)

    def load(
        self,
        load: Callable,
        builder: Any,
        pointers: Any,
        mask: Any,
        other: Any,
        *rest: Any,
        **options: Any,
    ):
        if other is None and not np.all(mask.data):  # for descriptors, this is a memoryview
            other = _undefined(pointers)
            self.accesses.undefined |= other is not None
        wanted, addresses = _selected(pointers, mask)
        self.accesses._loads.append(addresses)
        self.accesses.loaded += _element_bytes(pointers) * addresses.size
        inside = self._inside(builder, pointers, wanted, False)
        return load(builder, pointers, inside, other, *rest, **options)

    def store(
        self, store: Callable, builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any
    ):
        inside = self._store(builder, pointers, mask, value.data)
        return store(builder, pointers, value, inside, *rest)

    def atomic(
        self,
        atomic: Callable,
        builder: Any,
        op: Any,
        pointers: Any,
        value: Any,
        mask: Any,
        *rest: Any,
    ):
        inside = self._store(builder, pointers, mask, None)
        return atomic(builder, op, pointers, value, inside, *rest)

    def swap(self, swap: Callable, builder: Any, pointers: Any, old: Any, value: Any, *rest: Any):
        every = TensorHandle(np.ones(pointers.data.shape, bool), tl.int1)
        inside = self._store(builder, pointers, every, None)
        return swap(builder, pointers, old, value, *rest) if inside.data.all() else old

    def _store(
        self, builder: Any, pointers: Any, mask: Any, values: np.ndarray | None
    ) -> TensorHandle:
        wanted, addresses = _selected(pointers, mask)
        if addresses.size:
            if values is not None:
                values = np.broadcast_to(values, pointers.data.shape)[wanted]
            x, y, z = builder.grid_idx
            program = (z * 2**20 + y) * 2**20 + x
            self.accesses._stores.append(Store(addresses, values, program, self._launches))
        self.accesses.stored += _element_bytes(pointers) * addresses.size
        return self._inside(builder, pointers, wanted, True)

    def _inside(
        self, builder: Any, pointers: Any, wanted: np.ndarray, stores: bool
    ) -> TensorHandle:
        """Return the mask of the elements that belong to a tensor, and record others."""
        addresses = pointers.data[wanted]
        if not addresses.size:
            return TensorHandle(wanted, tl.int1)
        allowed, place = self._memory.allowed(addresses)
        if not allowed.all() and self.accesses.outside is None:
            first = int(np.argmin(allowed))
            name, distance = None, 0
            if place[first] >= 0:
                buffer = self._memory.buffers[place[first]]
                distance = int(addresses[first]) - buffer.whole.data_ptr()
                name, distance = buffer.name, distance // buffer.whole.element_size()
                distance -= buffer.view.storage_offset()
            self.accesses.outside = Outside(
                stores,
                int((~allowed).sum()),
                name,
                distance,
                tuple(builder.grid_idx),
                _element_bytes(pointers),
            )
        inside = wanted.copy()
        inside[wanted] = allowed
        return TensorHandle(inside, tl.int1)


def _selected(pointers: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask in the shape of the pointers, and the addresses that it selects."""
    wanted = np.broadcast_to(mask.data, pointers.data.shape)
    return wanted, pointers.data[wanted]


def _element_bytes(pointers: Any) -> int:
    return max(1, pointers.get_element_ty().primitive_bitwidth // 8)


def _undefined(pointers: Any) -> TensorHandle | None:
    """Return NaN for floats that a load leaves undefined, or None for integers."""
    dtype = pointers.get_element_ty()
    if dtype not in (tl.float16, tl.bfloat16, tl.float32, tl.float64):
        return None
    # The interpreter stores a bfloat16 as its bits.
    kind = np.uint16 if dtype == tl.bfloat16 else np.dtype(f"f{dtype.primitive_bitwidth // 8}")
    value = 0x7FC0 if dtype == tl.bfloat16 else np.nan
    return TensorHandle(np.full(pointers.data.shape, value, kind), dtype)


@contextmanager
def recorded(arena: Arena) -> Iterator[Accesses]:
    """Record the memory accesses of kernels in this context. On a GPU, nothing is recorded."""
    recorder = _Recorder(arena)
    if not INTERPRETED:
        yield recorder.accesses
        return
    methods = {
        (InterpreterBuilder, "create_masked_load"): recorder.load,
        (InterpreterBuilder, "create_masked_store"): recorder.store,
        (InterpreterBuilder, "create_atomic_rmw"): recorder.atomic,
        (InterpreterBuilder, "create_atomic_cas"): recorder.swap,
        (InterpretedFunction, "run"): recorder.run,
    }
    originals = {place: getattr(*place) for place in methods}
    for place, method in methods.items():
        setattr(*place, _calling(method, originals[place]))
    try:
        yield recorder.accesses
    finally:
        for place, original in originals.items():
            setattr(*place, original)


def _calling(method: Callable, original: Callable) -> Callable:
    return lambda owner, *arguments, **named: method(original, owner, *arguments, **named)
