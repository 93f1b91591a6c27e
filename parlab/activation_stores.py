"""Stores tensors outside the device while they are not needed.

    store = store_for(device)
    ticket = store.write(numbers)      # a flat tensor of bytes
    ...
    numbers = ticket.read()            # a new tensor on the same device, as often as needed

A ticket's place in the store becomes free when nothing refers to the ticket any more.
"""

import tempfile
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor


class Ticket(Protocol):
    """The object that a store returns for a tensor that it has written."""

    def read(self) -> Tensor:
        """Return a copy of the numbers, on the device that they came from."""


class Store(Protocol):
    """A place for tensors outside the device."""

    def write(self, numbers: Tensor) -> Ticket:
        """Copy a flat tensor of dtype uint8 to the store."""


def require_flat(numbers: Tensor) -> None:
    """Raise a ValueError if a tensor is not flat, contiguous, and of dtype uint8."""
    if numbers.dtype != torch.uint8 or numbers.dim() != 1 or not numbers.is_contiguous():
        raise ValueError(
            f"a store writes flat uint8 tensors, not {numbers.dtype} of shape "
            f"{tuple(numbers.shape)}: make a view of the whole storage"
        )


def store_for(device: torch.device, folder: str | Path | None = None) -> Store:
    """Return pinned host memory for a GPU, and otherwise a file in `folder`."""
    return PinnedStore(device) if device.type == "cuda" else FileStore(folder)


class FileStore:
    """A file without a name, which the operating system removes even if the process is killed.

    Tensors are read and written, not mapped into memory, because mapped pages count as resident.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        """Create the file in `folder`, by default in the system's folder for temporary files."""
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (tickets outlive a block)
        self._end = 0
        self._free: dict[int, list[int]] = defaultdict(list)  # offsets by number of bytes

    @property
    def bytes(self) -> int:
        """The number of bytes that tickets refer to."""
        return self._end - sum(size * len(offsets) for size, offsets in self._free.items())

    def write(self, numbers: Tensor) -> "FileTicket":
        """Write to a free place of exactly this size, or to the end of the file."""
        require_flat(numbers)
        size = numbers.nbytes
        if self._free[size]:
            offset = self._free[size].pop()
        else:
            offset, self._end = self._end, self._end + size
        self._file.seek(offset)
        self._file.write(numbers.cpu().numpy().data)
        ticket = FileTicket(self, offset, size, numbers.device)
        weakref.finalize(ticket, self._free[size].append, offset).atexit = False
        return ticket

    def _read(self, offset: int, size: int) -> Tensor:
        numbers = torch.empty(size, dtype=torch.uint8)
        self._file.seek(offset)
        self._file.readinto(numbers.numpy().data)
        return numbers


class FileTicket:
    """A place in a `FileStore`."""

    def __init__(self, store: FileStore, offset: int, size: int, device: torch.device) -> None:
        self._store, self._offset, self._size, self._device = store, offset, size, device

    def read(self) -> Tensor:
        """Return a new tensor with the bytes that were written."""
        return self._store._read(self._offset, self._size).to(self._device)


class PinnedStore:
    """Pinned host memory for a GPU. Copies run on their own stream, next to the computation.

    Numbers are kept on the GPU while they are copied. Before the next copy, the current stream
    waits for this one, so a slow link slows down the computation instead of filling the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._leaving: Tensor | None = None

    def write(self, numbers: Tensor) -> "PinnedTicket":
        """Start a copy that begins as soon as the numbers are computed, and do not wait for it."""
        require_flat(numbers)
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._arrive()
        self._copy(host, numbers)
        self._leaving = numbers
        return PinnedTicket(self, host)

    def _read(self, host: Tensor) -> Tensor:
        numbers = torch.empty(host.shape, dtype=host.dtype, device=self._device)
        self._copy(numbers, host)
        self._arrive()
        return numbers

    def _copy(self, target: Tensor, source: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def _arrive(self) -> None:
        """Make the current stream wait for all copies. Then their memory can be used again."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._leaving = None


class PinnedTicket:
    """Pinned memory of a `PinnedStore`."""

    def __init__(self, store: PinnedStore, host: Tensor) -> None:
        self._store, self._host = store, host

    def read(self) -> Tensor:
        """Return a new tensor on the GPU. The current stream waits until it has arrived."""
        return self._store._read(self._host)
