"""A store that records what is written and read, and what saved tensors it should contain."""

import weakref
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from parlab.activation_stores import require_flat
from parlab.checks.base.mistakes import Finding, observed


class RecordingStore:
    """A store in NumPy's memory, which `memory.LiveStorages` does not count.

    Attributes:
        contents: the bytes of all tensors that were written, in order.
        reads: how many times a ticket was read.
    """

    def __init__(self) -> None:
        self.contents: list[np.ndarray] = []
        self.reads = 0
        self._tickets: weakref.WeakSet[RecordingTicket] = weakref.WeakSet()

    def write(self, numbers: Tensor) -> "RecordingTicket":
        """Copy a flat uint8 tensor."""
        require_flat(numbers)
        self.contents.append(numbers.cpu().numpy().copy())
        ticket = RecordingTicket(self, self.contents[-1], numbers.device)
        self._tickets.add(ticket)
        return ticket

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor that was written, in order."""
        return [content.nbytes for content in self.contents]

    @property
    def left(self) -> int:
        """How many tickets something still refers to."""
        return len(self._tickets)


class RecordingTicket:
    """What a `RecordingStore` returns."""

    def __init__(self, store: RecordingStore, content: np.ndarray, device: torch.device) -> None:
        self._store, self._content, self._device = store, content, device

    def read(self) -> Tensor:
        """Return a new tensor with the bytes that were written."""
        self._store.reads += 1
        return torch.tensor(self._content, device=self._device)


class Saves:
    """What autograd saves in a context and what of it should be written, seen by hooks of our own.

    Attributes:
        sizes: bytes of each pair of a storage and its version that should be written, sorted.
        large: how many saved tensors have such a storage.
    """

    def __init__(self, stays: Iterable[Tensor], smallest: int) -> None:
        self._stays = {tensor.untyped_storage() for tensor in stays}
        self._smallest, self.large = smallest, 0
        self._found: dict[tuple[torch.UntypedStorage, int], int] = {}

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        """Return the function's result after recording what autograd saves for it."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            return function()

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in self._stays and storage.nbytes() >= self._smallest:
            self.large += 1
            self._found[storage, tensor._version] = storage.nbytes()
        return tensor.detach()

    @property
    def sizes(self) -> list[int]:
        return sorted(self._found.values())

    def new(self, before: Iterable[Tensor]) -> int:
        """Return the bytes of all but the storages of some tensors."""
        old = {tensor.untyped_storage() for tensor in before}
        return sum(size for (storage, _), size in self._found.items() if storage not in old)


def freed(left: int, when: str) -> Finding | None:
    if not left:
        return None
    return observed(
        f"{when}, {left} tickets are still in use: only the graph may refer to them (which is "
        "never freed if `pack` returns a saved tensor itself: use `tensor.detach()`)"
    )
