"""Steps of a learner's function, watched from inside its stages."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parlab.checks.pipeline_parallel.cases import Case
from parlab.checks.pipeline_parallel.explained import explained
from parlab.checks.pipeline_parallel.notes import Noted, Notes
from parlab.checks.trial import Trial
from parlab.pipeline import Action
from parlab.pipeline.stages import Share

# A busy machine takes long to bring ranks together: a step of a check needs milliseconds.
SECONDS = 10.0


@dataclass
class Seen:
    """A step on this rank."""

    loss: Any
    gradients: list[Tensor | None]  # of the parameters that are not frozen
    frozen: dict[int, tuple[bool, Tensor | None]]  # of others: `requires_grad`, `grad`
    weights: list[Tensor]
    before: list[Tensor]
    did: list[Action]
    modes: list[int]  # stages that were in another mode in a forward pass, or are so afterwards
    modes_after: list[int]
    saved: list[int]
    held: list[int]
    inputs: list[int]
    arguments: list[Tensor]


Start = Callable[[Share], Callable[[Tensor, Tensor], Any]]


def run(trial: Trial, case: Case, start: Start, steps: int = 1) -> list[Seen]:
    """Give `start` a share, and what it returns a batch, so many times; collective over the lab.

    Where a rank does not have the first stage, its inputs are no numbers, or no tokens; and so for
    the targets.
    """
    notes = Notes(case)

    def given() -> tuple[Tensor, Tensor]:
        inputs, targets = case.inputs.clone(), case.targets.clone()
        if trial.rank != 0:
            inputs.fill_(-1 if case.tokens else float("nan"))
        if trial.rank != trial.size - 1:
            targets.fill_(float("nan"))
        return inputs, targets

    def stepped() -> list[Seen]:
        share, seen = case.share(), []
        parameters = share.parameters()
        trainable = [p.requires_grad for p in parameters]
        before = [p.detach().clone() for p in parameters]
        stages = {
            number: Noted(stage, number, notes, trial.size == 1, case.training)
            for number, stage in share.own.items()
        }
        share.own.update(stages)
        step = start(share)
        for _ in range(steps):
            for parameter in parameters:
                parameter.grad = None
            notes.begin()
            arguments = given()
            loss = step(*arguments)
            pairs = list(zip(parameters, trainable, strict=True))
            seen.append(
                Seen(
                    loss,
                    [p.grad for p, trains in pairs if trains],
                    {
                        n: (p.requires_grad, p.grad)
                        for n, (p, trains) in enumerate(pairs)
                        if not trains
                    },
                    [p.detach().clone() for p in parameters],
                    before,
                    notes.did,
                    list(notes.modes),
                    [number for number, stage in stages.items() if not stage.in_mode()],
                    notes.most_saved,
                    notes.most_held,
                    notes.most_inputs,
                    list(arguments),
                )
            )
        return seen

    _import_all()
    told = partial(explained, trial, case, notes)
    return trial.run_function(stepped, seconds=SECONDS, explain=told) or []


@functools.cache
def _import_all() -> None:
    """What torch imports at the first backward pass from a gradient: not in the learner's time."""
    torch.zeros(1, requires_grad=True).mul(1).backward(torch.zeros(1))
