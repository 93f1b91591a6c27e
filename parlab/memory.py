"""Measures the bytes of parameters, gradients, optimizer states, and activations, and the peak.

    memory.model_states(model, optimizer)      # parameters, gradients, optimizer states
    with memory.Peak() as peak:
        loss = model(x).sum()
    peak.bytes
    with memory.History() as history:          # after each operation
        model(x).sum().backward()
    history.bytes
    with memory.Saved(model) as saved:         # activations
        loss = model(x).sum()
    saved.bytes

Memory is counted by storages. Tensors that share a storage (tied weights, views of a flat gradient
buffer or of a DDP bucket) count once, and a view counts with the whole storage that it keeps alive.
"""

import resource
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from parlab.runtime.heap import give_back


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages of `tensors`. A DTensor counts its local part."""
    storages = {s._cdata: s.nbytes() for s in map(_storage, tensors)}
    return sum(storages.values())


def parameter_bytes(module: nn.Module) -> int:
    """Return the bytes of all parameters, trainable or not."""
    return tensor_bytes(module.parameters())


def gradient_bytes(module: nn.Module) -> int:
    """Return the bytes of the gradients that exist now."""
    return tensor_bytes(p.grad for p in module.parameters() if p.grad is not None)


def buffer_bytes(module: nn.Module) -> int:
    """Return the bytes of the buffers."""
    return tensor_bytes(module.buffers())


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the optimizer's states on this rank, 0 before its first step."""
    # ZeroRedundancyOptimizer keeps this rank's shard in an inner optimizer.
    own = getattr(optimizer, "optim", optimizer)
    return tensor_bytes(_tensors(list(own.state.values())))


@dataclass(frozen=True)
class ModelStates:
    """The bytes of parameters, gradients, and optimizer states."""

    parameters: int
    gradients: int
    optimizer_states: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer_states


def model_states(module: nn.Module, optimizer: torch.optim.Optimizer) -> ModelStates:
    """Return the bytes of a model's current states on this rank."""
    return ModelStates(parameter_bytes(module), gradient_bytes(module), optimizer_bytes(optimizer))


class Peak:
    """Measures the peak memory of tensors that are allocated inside the block.

        with Peak(device) as peak:
            ...
        peak.bytes

    On a GPU, this is the allocator's count. On the CPU, every operation of torch is watched, and a
    storage counts from the operation that first returns it until it is freed. On the CPU, the peak
    does not include

    - memory that an operation allocates and frees internally;
    - memory of NumPy and Python;
    - memory of threads other than this one and its backward pass.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.bytes = 0
        self._watch: LiveStorages | None = None
        self._before = 0
        self._highest = 0  # of the allocator, on a GPU

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            self._look_at_allocator()
            self._highest = self._before = torch.cuda.memory_allocated(self.device)
            _open_on_gpus.append(self)
        elif self.device.type == "cpu":
            self._watch = LiveStorages()
            self._watch.__enter__()
        else:
            raise ValueError(f"no count of memory on {self.device}: use a CPU or CUDA device")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watch is None:
            self._look_at_allocator()
            _open_on_gpus.remove(self)
            self.bytes = self._highest - self._before
        else:
            self._watch.__exit__(kind, error, traceback)
            self.bytes = self._watch.peak

    def _look_at_allocator(self) -> None:
        """Update the peak of every open block on this GPU, then reset the allocator's only peak."""
        highest = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        for peak in _open_on_gpus:
            if peak.device == self.device:
                peak._highest = max(peak._highest, highest)


_open_on_gpus: list[Peak] = []


class History(TorchDispatchMode):
    """The bytes of tensors allocated inside the block, after each operation of torch.

        with History(device) as history:
            loss = model(x).sum()
            history.mark("backward")
            loss.backward()
        history.bytes, history.marks

    It counts the same memory as `Peak`. On a GPU, each number is from the time when an operation
    has been launched but may not be complete. Its memory is allocated at the launch.

    Attributes:
        bytes: one number for each operation, in order.
        marks: the number of operations before each mark, by the mark's name.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)
        self.bytes: list[int] = []
        self.marks: dict[str, int] = {}
        self._watch = LiveStorages()
        self._before = 0

    def mark(self, name: str) -> None:
        """Record that the next operation is the first one of the part called `name`."""
        self.marks[name] = len(self.bytes)

    @property
    def peak(self) -> int:
        return max(self.bytes, default=0)

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            self._before = torch.cuda.memory_allocated(self.device)
        return super().__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        if self.device.type == "cuda":
            result = func(*args, **(kwargs or {}))
            self.bytes.append(torch.cuda.memory_allocated(self.device) - self._before)
        else:
            result = self._watch.__torch_dispatch__(func, types, args, kwargs)
            self.bytes.append(self._watch.live)
        return result


def process_bytes(device: torch.device) -> int:
    """Return the bytes of tensors on the GPU or, on the CPU, the resident bytes of this process.

    On the CPU, glibc first returns freed memory that it still holds to the system.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    give_back()
    _, resident, *_ = Path("/proc/self/statm").read_text(encoding="utf-8").split()  # Linux only
    return int(resident) * resource.getpagesize()


class Saved:
    """Measures the activations that autograd saves in a forward pass for the backward pass.

        with Saved(model) as saved:
            loss = model(x).sum()
        saved.bytes

    These are the bytes of the distinct storages of saved tensors, without the model's parameters. A
    tensor still counts if it is freed later.
    """

    def __init__(self, module: nn.Module) -> None:
        self._sizes: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []  # so that no other storage gets its address
        self._parameters = {_storage(p.detach())._cdata for p in module.parameters()}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage(tensor)
        if storage._cdata not in self._parameters and storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = storage.nbytes()
            self._kept.append(storage)
        return tensor.detach()  # an output that its own graph refers to would never be freed

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._kept.clear()


class LiveStorages(TorchDispatchMode):
    """Tracks the storages that operations on the CPU return, from allocation to release.

    Attributes:
        live: bytes of the storages that exist now. Updated even after the block.
        peak: the largest value of `live`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}  # bytes of live storages that were allocated inside
        self._others: dict[int, weakref.ref] = {}  # storages that were allocated before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._meet(_storage(tensor), allocated=False)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._meet(_storage(tensor), allocated=True)
        self.peak = max(self.peak, self.live)
        return result

    def _meet(self, storage: torch.UntypedStorage, allocated: bool) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            self.live += size - self._sizes[key]  # it may have been resized
            self._sizes[key] = size
        elif key not in self._others and not allocated:
            self._others[key] = weakref.ref(storage, lambda _: self._others.pop(key, None))
        elif key not in self._others:
            self._sizes[key] = size
            self.live += size
            weakref.finalize(storage, self._free, key).atexit = False

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.untyped_storage()


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    # Do not use torch's `tree_iter`, which takes longer than most operations. This runs for each.
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
