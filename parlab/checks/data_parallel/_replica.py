"""A plain wrapper and a group with which `accumulate` and hidden checks run answers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn

from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.models import State, trainable
from parlab.ledger import Ledger


class Replica(nn.Module):
    """A `BucketedDataParallel` without buckets that records its use.

    The first backward pass outside `no_sync()` copies each gradient, and `finish()` sums these
    copies. `finish()` sends nothing that later passes add.

    Attributes:
        synchronized: for each backward pass, whether it ran outside `no_sync()`.
        finished: for each `finish()`, the number of backward passes before it.
        outputs: the results of the forward passes.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.model, self.group = model, group
        self.synchronize = True
        self.synchronized: list[bool] = []
        self.finished: list[int] = []
        self.outputs: list[Tensor] = []
        self.sent: State = {}
        *_, self._first_ready = trainable(model)
        for name, parameter in trainable(model).items():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._ready(name, p))

    def _ready(self, name: str, parameter: Tensor) -> None:
        if name == self._first_ready:
            self.synchronized.append(self.synchronize)
        if self.synchronize and name not in self.sent:
            self.sent[name] = parameter.grad.clone()

    def forward(self, inputs: Tensor) -> Tensor:
        self.outputs.append(self.model(inputs))
        return self.outputs[-1]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = True

    def finish(self) -> None:
        self.finished.append(len(self.synchronized))
        for name, parameter in trainable(self.model).items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            total = self.sent.get(name, parameter.grad)
            later = parameter.grad - total
            total = total.clone()
            dist.all_reduce(total, group=self.group)
            parameter.grad.copy_(total + later)
        self.sent = {}

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


def late_group(comm: MPI.Intracomm, ledger: Ledger) -> RecordingGroup:
    """Return a group that runs a collective only when a rank waits for it. Collective.

    `ledger` records its calls. Tensors must be on the CPU.
    """
    return RecordingGroup(comm.Dup(), list(range(comm.size)), ledger)
