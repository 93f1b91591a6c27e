"""Stages that write down what is done with them, and how long their passes are held."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.compare import same
from parlab.checks.models import TOLERANCE
from parlab.checks.pipeline_parallel.cases import Case
from parlab.pipeline import Action, backward, forward


class Notes:
    """What the stages of a rank saw."""

    def __init__(self, case: Case) -> None:
        self._inputs = case.stage_inputs()
        self.begin()
        self.saved = self.held = self.inputs = 0

    def begin(self) -> None:
        """Begin a step."""
        self.did: list[Action] = []
        self.modes: set[int] = set()  # stages that were not in the caller's mode
        self.most_saved: list[int] = []  # at each forward pass, with its own
        self.most_held: list[int] = []
        self.most_inputs: list[int] = []  # of those that came from another rank

    def came(self, stage: int, x: Tensor, alone: bool) -> None:
        if stage > 0 and not alone:
            self.inputs += 1
            weakref.finalize(x.untyped_storage(), self.freed, "inputs").atexit = False

    def which(self, stage: int, x: Tensor) -> int:
        """The micro-batch that came to a stage; −1 for none that is known."""
        known = enumerate(self._inputs[stage])
        return next((i for i, one in known if same(x, one, TOLERANCE)), -1)

    def freed(self, name: str) -> None:
        setattr(self, name, getattr(self, name) - 1)


class Noted(nn.Module):
    """A stage that writes down its passes, and how many micro-batches are held as it starts one."""

    def __init__(
        self, stage: nn.Module, number: int, notes: Notes, alone: bool, training: bool
    ) -> None:
        super().__init__()
        self.stage, self.number, self.notes, self.alone = stage, number, notes, alone
        self.was = training
        self.train(training)

    def in_mode(self) -> bool:
        """Whether all of the stage is in the mode in which the caller left it."""
        return all(module.training == self.was for module in self.modules())

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_mode():
            self.notes.modes.add(self.number)
        i = self.notes.which(self.number, x)
        self.notes.did.append(forward(self.number, i))
        self.notes.came(self.number, x, self.alone)
        y = _Note.apply(self.stage(x), self.number, i, self.notes)
        self.notes.most_saved.append(self.notes.saved)
        self.notes.most_held.append(self.notes.held)
        self.notes.most_inputs.append(self.notes.inputs)
        return y


class _Token:
    """Lives as long as what it is attached to."""


class _Note(torch.autograd.Function):
    """The identity; what it saves lives as long as all that autograd saves of the pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, stage: int, i: int, notes: Notes) -> Tensor:
        ctx.action, ctx.notes = backward(stage, i), notes
        marker, ctx.token = torch.zeros(1), _Token()
        ctx.save_for_backward(marker)
        notes.saved, notes.held = notes.saved + 1, notes.held + 1
        weakref.finalize(marker.untyped_storage(), notes.freed, "saved").atexit = False
        weakref.finalize(ctx.token, notes.freed, "held").atexit = False
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.notes.did.append(ctx.action)
        return gradient, None, None, None
