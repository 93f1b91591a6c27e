"""Train a learner's stage on the ranks of a trial, and record what each rank has and sends."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab import memory
from parlab.checks.base.check import Check
from parlab.checks.base.late_group import Event
from parlab.checks.base.models import Shard
from parlab.checks.base.trial import Trial
from parlab.checks.zero._models import parameter_vector

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Units = list[list[nn.Parameter]]
Values = list[Tensor]  # a flat tensor for each unit
Watch = Callable[[Trial, Any, Any], dict[str, int]]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    # The loss sums over many samples. With longer steps, rounding would grow beyond the tolerance.
    return torch.optim.SGD(parameters, lr=0.005)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def trials(check: Check) -> Iterator[tuple[Trial, MakeOptimizer]]:
    """Yield the check's trials: SGD and Adam on all ranks, and one of them on fewer ranks."""
    for number, trial in enumerate(check.trials()):
        both = [("SGD", sgd), ("Adam", adam)]
        for name, make_optimizer in both if number == 0 else [both[number % 2]]:
            trial.situation = f"{name}, {trial.size} rank" + "s" * (trial.size > 1)
            yield trial, make_optimizer


@dataclass
class Record:
    """What one rank had after a training step, and what happened in the step."""

    shards: Values
    gradients: Values  # of the shards, after finish()
    weights: Values | None  # of the model; None if they are freed
    # By kind, after step(); "others" also after finish(). "evaluated" are the bytes of parameters
    # after a forward pass without gradients.
    bytes_held: dict[str, int]
    peaks: dict[str, int]  # bytes that `watch` has measured
    unfreed: list[str]  # parameters with a .grad after finish()
    begins_at: int | None  # see `_begins_at`
    events: list[Event]
    ring_bytes: float


def train(
    trial: Trial,
    model: nn.Module,
    units: Units,
    given: object,
    make_optimizer: MakeOptimizer,
    data: list[list[Shard]],
    watch: Watch,
    evaluates: bool,
) -> list[Record]:
    """Train with the learner's class on `given`. `data[i][j]` is this rank's in step i, pass j.

    With `evaluates`, a forward pass without gradients follows each step.

    Raises RuntimeError if a shard has no gradient, because an optimizer would skip it.
    """
    group, live, records = trial.group, memory.LiveStorages(), []
    with live:
        stage = trial.check.function(given, make_optimizer, group)
    _require_gradients(stage, "__init__()")
    peaks = watch(trial, model, stage)
    for passes in data:
        group.take_events()
        trial.ledger.clear()
        peaks.update(dict.fromkeys(peaks, 0))
        with live:
            stage.zero_grad()
            for number, (inputs, targets) in enumerate(passes):
                if len(inputs):
                    F.cross_entropy(model(inputs), targets, reduction="sum").backward()
                if given is not model or number == len(passes) - 1:
                    stage.finish()
        _require_gradients(stage, "finish()")
        unfreed = [name for name, p in model.named_parameters() if p.grad is not None]
        gradients = [shard.grad.detach().clone() for shard in stage.shards]
        begins_at = _begins_at(stage)
        others = _bytes_held(live, units, stage)["others"]
        with live:
            stage.step()
        _require_gradients(stage, "step()")
        held = _bytes_held(live, units, stage)
        held["others"] = max(held["others"], others)
        whole = all(p.untyped_storage().nbytes() for p in model.parameters())
        weights = [parameter_vector(unit) for unit in units] if whole else None
        shards = [shard.detach().clone() for shard in stage.shards]
        sent = (group.take_events(), trial.ledger.ring_bytes())
        records.append(
            Record(shards, gradients, weights, held, dict(peaks), unfreed, begins_at, *sent)
        )
        if evaluates:
            with live, torch.no_grad():
                model(inputs)
            held["evaluated"] = _bytes_held(live, units, stage)["parameters"]
    return records


def _require_gradients(stage: Any, method: str) -> None:
    if any(shard.grad is None for shard in stage.shards):
        raise RuntimeError(
            f"after {method}, a shard has no .grad, so the optimizer would skip it. Keep a tensor "
            "there, and set it to zero with `zero_()`: `optimizer.zero_grad()` sets it to None"
        )


def _begins_at(stage: Any) -> int | None:
    """Return where the first shard's gradient begins in `stage.gradient`; None if elsewhere."""
    whole, own = getattr(stage, "gradient", None), stage.shards[0].grad
    if not isinstance(whole, Tensor):
        return None
    if whole.untyped_storage().data_ptr() != own.untyped_storage().data_ptr():
        return None
    return own.storage_offset() - whole.storage_offset()


def _bytes_held(live: memory.LiveStorages, units: Units, stage: Any) -> dict[str, int]:
    """Return the bytes that this rank holds now for what it trains, by kind.

    "others" are all other tensors that the stage has allocated, wherever it keeps them.
    """
    parameters = [*(p for unit in units for p in unit), *stage.shards]
    gradients = [p.grad for p in parameters if p.grad is not None]

    def measure() -> dict[str, int]:
        with live:  # an operation on a resized tensor makes its new size known
            states = [t.detach() for t in [*parameters, *gradients]]
        held = {
            "parameters": memory.tensor_bytes(states[: len(parameters)]),
            "gradients": memory.tensor_bytes(gradients),
            "optimizer_states": memory.optimizer_bytes(stage.optimizer),
        }
        all_states = memory.tensor_bytes(states) + held["optimizer_states"]
        return held | {"others": live.live - all_states}

    if measure()["others"] > 0:
        gc.collect()  # cycles from the last step, which the collector may have left
    return measure()
