"""Exercise `memory_by_kind`."""

from functools import partial
from random import Random
from typing import Any

import torch
from torch import nn

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import tokens
from parlab.checks.predictions import form
from parlab.checks.zero.models import Blocks, awkward_blocks

MISTAKES = Mistakes(
    tied_twice=(
        "{name}: a parameter that two layers share counts twice; it is one tensor, under two names"
    ),
    frozen_left_out="parameters: frozen ones take room as well",
    gradients_assumed=(
        "gradients: as many bytes as all parameters have. Those of frozen and unused ones are not "
        "there (.grad is None)"
    ),
    numbers="{name}: that is the count of numbers, not of bytes",
    four_bytes="{name}: that is 4 bytes for each number, and some have another dtype",
    states_assumed=(
        "optimizer_states: that is twice the parameters. Which states there are depends on the "
        "optimizer, and on what it has stepped: count those in optimizer.state"
    ),
    counters_left_out=(
        "optimizer_states: the step counters are missing. Tensors of one number take room as well"
    ),
)


class Counting(torch.optim.SGD):
    """Not all that an optimizer keeps is a tensor: this one counts its steps as well."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for state in self.state.values():
            state["steps"] = state.get("steps", 0) + 1


OPTIMIZERS = {
    "Adam": torch.optim.Adam,
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "SGD that keeps a number for each parameter": partial(Counting, lr=0.1, momentum=0.9),
}


@check_of(MISTAKES)
def memory_by_kind(check: Check) -> str:
    """Check several optimizers, before and after a step, with parameters of two dtypes."""
    with check.trial() as trial:
        for name, make in OPTIMIZERS.items():
            for steps in (0, 1):
                trial.situation = f"{name}, " + ("after a step" if steps else "before any step")
                model, optimizer = trained(trial.draw, make, steps)
                got = trial.run(model, optimizer)
                right = counted(model, optimizer)
                trial.require(
                    lambda: form(got, right),
                    lambda: misconception(got, right, model, optimizer),
                    lambda: bytes_are(got, right),
                )
    return "every byte, for a tied weight, a frozen one and one without gradient, of two dtypes"


def trained(draw: Random, make: Any, steps: int) -> tuple[Blocks, torch.optim.Optimizer]:
    model = awkward_blocks(draw)
    model.unused.float()
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    inputs, _ = tokens(draw, model, 3)
    for _ in range(steps):
        # The first and the last parameter have gradients; those without lie between them.
        (model(inputs).square().sum() + model.spare.sum()).backward()
        optimizer.step()
    return model, optimizer


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[torch.Tensor]]:
    """What there is, by kind."""
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer_states": [value for value in states if isinstance(value, torch.Tensor)],
    }


def counted(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    return {kind: sum(t.nbytes for t in of) for kind, of in tensors(model, optimizer).items()}


def misconception(
    got: dict[str, float], right: dict[str, int], model: Blocks, optimizer: torch.optim.Optimizer
) -> Finding | None:
    there = tensors(model, optimizer)
    twice = [p for _, p in model.named_parameters(remove_duplicate=False)]
    every = sum(p.nbytes for p in model.parameters())
    trainable = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    for kind, value in right.items():
        if got[kind] == value:
            continue
        again = [t for t in twice if kind == "parameters" or t.grad is not None]
        numbers = sum(t.numel() for t in there[kind])
        known = {
            numbers: MISTAKES.numbers(name=kind),
            4 * numbers: MISTAKES.four_bytes(name=kind),
            sum(t.nbytes for t in again): MISTAKES.tied_twice(name=kind),
        }
        if kind == "parameters":
            known[trainable] = MISTAKES.frozen_left_out()
        if kind == "gradients":
            known |= {every: MISTAKES.gradients_assumed(), trainable: MISTAKES.gradients_assumed()}
        if kind == "optimizer_states":
            large = [t for t in there[kind] if t.dim()]
            known[sum(t.nbytes for t in large)] = MISTAKES.counters_left_out()
            assumed = MISTAKES.states_assumed()
            known |= {2 * every: assumed, 2 * trainable: assumed}
        if value and got[kind] in known:
            return known[got[kind]]
        if got[kind] and got[kind] in (every, trainable, 2 * every, 2 * trainable):
            return known.get(got[kind])
    return None


def bytes_are(got: dict[str, float], right: dict[str, int]) -> Finding | None:
    for kind, value in right.items():
        if got[kind] != value:
            return evidence(f"{kind}: {got[kind]} bytes where {value} are right")
    return None
