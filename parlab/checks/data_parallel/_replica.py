"""A plain wrapper and a group with which `accumulate` and hidden checks run answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.models import State, trainable
from parlab.ledger import Ledger


class _Kept:
    """A tensor that a forward pass keeps for its backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


class Replica(nn.Module):
    """A `BucketedDataParallel` with one buffer that records its use.

    The first backward pass outside `no_sync()` copies each gradient, and `finish()` sums these
    copies. `finish()` sends nothing that later passes add.

    Attributes:
        buffers: one buffer, of which all gradients are views.
        synchronized: for each backward pass, whether it ran outside `no_sync()`.
        finished: for each `finish()`, the number of backward passes before it.
        kept: at each forward pass and each `finish()`, how many tensors earlier passes still keep.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.model, self.group = model, group
        self.synchronize = True
        self.synchronized: list[bool] = []
        self.finished: list[int] = []
        self.kept: dict[str, int] = {}
        self.sent: State = {}
        parameters = trainable(model)
        *_, self._first_ready = parameters
        sizes = [p.numel() for p in parameters.values()]
        flat = parameters[self._first_ready].new_zeros(sum(sizes))
        self.buffers, self._parts = [flat], dict[str, Tensor]()
        for (name, parameter), part in zip(parameters.items(), flat.split(sizes), strict=True):
            parameter.grad = self._parts[name] = part.view_as(parameter)
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._ready(name))
        self._alive: WeakSet[_Kept] = WeakSet()
        self._passes = 0
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)

    def _ready(self, name: str) -> None:
        if name == self._first_ready:
            self.synchronized.append(self.synchronize)
        if self.synchronize and name not in self.sent:
            self.sent[name] = self._parts[name].clone()

    def _begin(self, *_: Any) -> None:
        self.kept[f"forward pass {self._passes + 1} begins"] = len(self._alive)
        self._passes += 1
        self._saving = saved_tensors_hooks(self._keep, lambda kept: kept.tensor)
        self._saving.__enter__()

    def _end(self, *_: Any) -> None:
        self._saving.__exit__()

    def _keep(self, tensor: Tensor) -> _Kept:
        self._alive.add(kept := _Kept(tensor))
        return kept

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = True

    def finish(self) -> None:
        self.finished.append(len(self.synchronized))
        self.kept["finish() is called"] = len(self._alive)
        for name, part in self._parts.items():
            total = self.sent.get(name, part)
            later = part - total
            total = total.clone()
            dist.all_reduce(total, group=self.group)
            part.copy_(total + later)
        self.sent = {}

    def zero_grad(self, set_to_none: bool = False) -> None:
        self.buffers[0].zero_()


def late_group(comm: MPI.Intracomm, ledger: Ledger) -> RecordingGroup:
    """Return a group that runs a collective only when a rank waits for it. Collective.

    `ledger` records its calls. Tensors must be on the CPU.
    """
    return RecordingGroup(comm.Dup(), list(range(comm.size)), ledger)
