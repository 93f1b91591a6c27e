"""A store that records what is written and read."""

import weakref

import numpy as np
import torch
from torch import Tensor

from parlab.activation_stores import require_flat


class RecordingStore:
    """A store in NumPy's memory, which `memory.LiveStorages` does not count.

    Attributes:
        contents: the bytes of all tensors that were written, in order.
        reads: how many times tickets were read.
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
        """The number of tickets that are still in use."""
        return len(self._tickets)


class RecordingTicket:
    """The handle of a tensor in a `RecordingStore`."""

    def __init__(self, store: RecordingStore, content: np.ndarray, device: torch.device) -> None:
        self._store, self._content, self._device = store, content, device

    def read(self) -> Tensor:
        """Return a new tensor with the bytes that were written."""
        self._store.reads += 1
        return torch.tensor(self._content, device=self._device)
