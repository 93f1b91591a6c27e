"""Finds the addresses of tensors' elements, and which addresses belong to a tensor."""

import gc
import weakref
from typing import Any

import numpy as np
import torch

from parlab.kernels.buffers import Arena


def addresses_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the address of each element, in the tensor's shape, as uint64."""
    offsets = torch.zeros(tensor.shape, dtype=torch.int64)
    for axis, (n, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(n) * stride * tensor.element_size()
        offsets += steps.view([-1 if i == axis else 1 for i in range(tensor.dim())])
    return offsets.numpy().astype(np.uint64) + np.uint64(tensor.data_ptr())


class Memory:
    """The addresses of elements of an arena's tensors, and of any other tensor that is alive."""

    def __init__(self, arena: Arena) -> None:
        self.buffers = sorted(arena.buffers, key=lambda buffer: buffer.whole.data_ptr())
        starts = [buffer.whole.data_ptr() for buffer in self.buffers]
        ends = [buffer.whole.data_ptr() + buffer.whole.nbytes for buffer in self.buffers]
        self._starts, self._ends = np.array(starts, np.uint64), np.array(ends, np.uint64)
        self._sizes = np.array([b.whole.element_size() for b in self.buffers], np.uint64)
        # The buffers' masks, one after the other, and where each begins.
        masks = [buffer.inside.numpy(force=True) for buffer in self.buffers]
        self._inside = np.concatenate([np.zeros(0, bool), *masks])
        self._first = np.cumsum([0, *map(len, masks)], dtype=np.int64)[:-1]
        self._extents: list[tuple[int, int]] = []
        self._found: list[weakref.ref] = []

    def launch(self, arguments: list[Any]) -> None:
        """Prepare for a kernel: store the memory of its arguments and of other known tensors."""
        self._found = [tensor for tensor in self._found if tensor() is not None]
        self._extents = [_extent(a) for a in arguments if isinstance(a, torch.Tensor)]
        self._extents += [_extent(t) for t in (tensor() for tensor in self._found) if t is not None]

    def allowed(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which addresses belong to elements, and the number of each one's buffer, or −1.

        The guards around a buffer belong to it.
        """
        if not len(self.buffers):
            return self._in_other_tensors(addresses), np.full(addresses.shape, -1)
        place = np.searchsorted(self._starts, addresses, "right").astype(np.int64) - 1
        at = np.maximum(place, 0)
        within = (place >= 0) & (addresses < self._ends[at])
        offset = np.where(within, addresses - self._starts[at], 0).astype(np.uint64)
        element = self._first[at] + (offset // self._sizes[at]).astype(np.int64)
        allowed = within & self._inside[np.where(within, element, 0)]
        allowed &= offset % self._sizes[at] == 0
        if not within.all():
            allowed |= ~within & self._in_other_tensors(addresses)
        return allowed, np.where(within, at, -1)

    def _in_other_tensors(self, addresses: np.ndarray) -> np.ndarray:
        found = self._in_extents(addresses)
        for generation in (0, 1, 2):  # of Python's objects, starting with the few youngest ones
            if found.all():
                break
            tensors = _plain_tensors(gc.get_objects(generation))
            self._found += [weakref.ref(tensor) for tensor in tensors]
            self._extents += [_extent(tensor) for tensor in tensors]
            found = self._in_extents(addresses)
        return found

    def _in_extents(self, addresses: np.ndarray) -> np.ndarray:
        found = np.zeros(addresses.shape, bool)
        low, high = int(addresses.min()), int(addresses.max())
        guarded = {buffer.whole.data_ptr() for buffer in self.buffers}
        for start, end in self._extents:
            if start <= high and low < end and start not in guarded:
                found |= (addresses >= start) & (addresses < end)
        return found


def _plain_tensors(objects: list[Any]) -> list[torch.Tensor]:
    # Check types first: hundreds of thousands of objects have few types.
    types = {one for one in set(map(type, objects)) if issubclass(one, torch.Tensor)}
    return [one for one in objects if type(one) in types and one.device.type == "cpu"]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the storage's first and last address. A kernel with a view may use all of it."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return 0, 0
