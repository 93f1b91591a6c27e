"""Training steps of a learner's stage, and the same steps of a serial loop on all samples."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.check import Check
from parlab.checks.compare import equal, same
from parlab.checks.groups import Event
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE, Shard, tokens
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.checks.zero.models import Blocks, parameter_vector

RATE = 0.5
_NO_GRADIENT = "a shard of the stage has no .grad"
# A busy machine takes long to bring ranks together: steps of a check need milliseconds.
SECONDS = 10.0
SLACK = 1.02  # of bytes: what is measured is within 2 % of the formula

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Plan = list[list[list[int]]]  # samples by step, backward pass and rank


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def trials(check: Check) -> Iterator[tuple[Trial, MakeOptimizer]]:
    """The check's trials: SGD and Adam on all ranks, then one of them on each smaller number."""
    for number, trial in enumerate(check.trials()):
        both = [("SGD", sgd), ("Adam", adam)]
        for name, make_optimizer in both if number == 0 else [both[number % 2]]:
            trial.situation = f"{name}, {trial.size} rank" + "s" * (trial.size > 1)
            yield trial, make_optimizer


MISTAKES = Mistakes(
    not_summed=(
        "each rank's shard moved along the gradient of its own samples: nothing was summed over "
        "the ranks"
    ),
    averaged_again=(
        "the gradients are averaged twice: the caller has weighted the loss, so the ranks' "
        "gradients are summed, and not divided by the number of ranks (SGD shows it, Adam hides it)"
    ),
    no_gradient=(
        "{when} a shard has no .grad: an optimizer passes over a parameter without one. Zero it in "
        "place where it must be zero; `optimizer.zero_grad()` sets it to None"
    ),
    full_states=(
        "the optimizer holds states of {got} numbers on a rank where a shard has {right}: give it "
        "the shards, not the model's parameters"
    ),
    not_gathered=(
        "after step() this rank has new values in its own shards only: the others' have to be "
        "gathered, or the ranks compute with weights of different steps"
    ),
)


@dataclass
class Held:
    """Bytes on this rank by kind, at one moment."""

    parameters: int
    gradients: int
    optimizer_states: int


@dataclass
class Step:
    """One training step on this rank: what was there after it, and what happened in it."""

    shards: list[Tensor]
    shard_gradients: list[Tensor | None]
    weights: list[Tensor] | None  # of the model by unit, where they are whole
    held: Held
    events: list[Event]
    ring_bytes: float
    kept: int  # bytes that the stage keeps after finish(), beside all these and the whole buffers
    gradients_left: list[str] = field(default_factory=list)  # parameters with a .grad
    most: dict[str, int] = field(default_factory=dict)  # what a watcher has seen at the most


def train(
    trial: Trial,
    model: Blocks,
    own: list[list[nn.Parameter]],
    given: object,
    make_optimizer: MakeOptimizer,
    steps: Sequence[Sequence[Shard]],
    totals: Sequence[int],
    finish_each: bool,
    watch: Callable[[object], dict[str, int]] | None = None,
) -> list[Step]:
    """Train with the learner's class on `given`, a model or layers; `steps[i][j]` is pass j's data.

    `own` are the model's parameters by unit.
    With `finish_each`, `finish()` follows each backward pass, else the last of a step. `watch` is
    told of the stage before the first step; what it returns is read at the end of each.
    """
    group = trial.group
    assert group is not None
    stage = trial.check.function(given, make_optimizer, group)
    _has_gradients(stage, "after __init__()")
    most = watch(stage) if watch else {}
    done = []
    for passes, total in zip(steps, totals, strict=True):
        group.take_events()
        trial.ledger.clear()
        stage.zero_grad()
        for number, (inputs, targets) in enumerate(passes):
            if len(inputs):
                loss = F.cross_entropy(model(inputs), targets)
                (loss * (len(inputs) / total)).backward()
            if finish_each or number == len(passes) - 1:
                stage.finish()
        left = [name for name, p in model.named_parameters() if p.grad is not None]
        _has_gradients(stage, "after finish()")
        gradients = [_copied(shard.grad) for shard in stage.shards]
        kept = kept_beside(model, stage)
        stage.step()
        _has_gradients(stage, "after step()")
        whole = all(p.untyped_storage().nbytes() for p in model.parameters())
        done.append(
            Step(
                [shard.detach().clone() for shard in stage.shards],
                gradients,
                [parameter_vector(unit) for unit in own] if whole else None,
                held(model, stage),
                group.take_events(),
                trial.ledger.ring_bytes(),
                kept,
                left,
                dict(most),
            )
        )
        most.update(dict.fromkeys(most, 0))
    return done


def _has_gradients(stage: Any, when: str) -> None:
    if any(shard.grad is None for shard in stage.shards):
        raise RuntimeError(f"{when} {_NO_GRADIENT}")


def no_gradient(endings: dict[int, Ended]) -> Finding | None:
    """What `train` has refused to go on with."""
    for ended in endings.values():
        when, separator, _ = ended.error.removeprefix("RuntimeError: ").partition(_NO_GRADIENT)
        if separator:
            return MISTAKES.no_gradient(when=when.strip())
    return None


def kept_beside(model: nn.Module, stage: Any) -> int:
    """Bytes of tensors in the attributes of a stage and of its units, beside what is theirs."""
    units = getattr(stage, "units", [])
    own = [*model.parameters(), *stage.shards, *(unit.flat for unit in units)]
    own += [t.grad for t in own if t.grad is not None]
    attributes = tree_leaves([vars(stage), *(vars(unit) for unit in units)])
    found = [leaf for leaf in attributes if isinstance(leaf, Tensor)]
    found += [t.grad for t in found if t.is_leaf and t.grad is not None]
    whole = [t.detach() for t in own]
    return memory.tensor_bytes([*whole, *(t.detach() for t in found)]) - memory.tensor_bytes(whole)


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def held(model: nn.Module, stage: object) -> Held:
    """What this rank holds now; memory counts that tensors keep alive, not their elements."""
    tensors = [*model.parameters(), *stage.shards]
    gradients = [p.grad for p in tensors if p.grad is not None]
    return Held(
        memory.tensor_bytes(p.detach() for p in tensors),
        memory.tensor_bytes(gradients),
        memory.optimizer_bytes(stage.optimizer),
    )


class Serial:
    """The same steps on one rank with all samples, from rank 0's start."""

    def __init__(
        self, model: Blocks, own: list[list[nn.Parameter]], make_optimizer: MakeOptimizer
    ) -> None:
        """`own` are the parameters of each unit, in `model`; both are copied."""
        self.model, self.own = copy.deepcopy((model, own))
        self.optimizer = make_optimizer([p for unit in self.own for p in unit])

    def weights(self) -> list[Tensor]:
        """Of each unit, side by side."""
        return [parameter_vector(unit) for unit in self.own]

    def gradient(self, shards: Sequence[Shard], total: int) -> list[Tensor]:
        """Of each unit: of the sum of the losses over `total`; zeros where there is none."""
        parameters = [p for unit in self.own for p in unit]
        loss = sum(
            F.cross_entropy(self.model(x), y, reduction="sum") / total for x, y in shards if len(x)
        )
        found = (
            torch.autograd.grad(loss, parameters, allow_unused=True)
            if isinstance(loss, Tensor)
            else [None] * len(parameters)
        )
        grads = iter(
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
        )
        return [torch.cat([next(grads).flatten() for _ in unit]) for unit in self.own]

    def step(self, gradient: list[Tensor]) -> None:
        for unit, values in zip(self.own, gradient, strict=True):
            sizes = [p.numel() for p in unit]
            for parameter, part in zip(unit, values.split(sizes), strict=True):
                parameter.grad = part.view_as(parameter)
        self.optimizer.step()


@dataclass
class Expected:
    """What a step leads to, by unit. `gradient` is the sum of the ranks' parts, `local[r]`."""

    before: list[Tensor]
    after: list[Tensor]
    gradient: list[Tensor]
    local: list[list[Tensor]]
    last_pass: list[Tensor]  # the gradient of the last backward pass alone


def planned(
    trial: Trial, model: Blocks, plan: Plan
) -> tuple[list[list[list[Shard]]], list[int], list[list[Shard]]]:
    """Data for `plan[step][pass][rank]` samples; totals of the steps; this rank's passes."""
    data = [[[tokens(trial.draw, model, n) for n in ranks] for ranks in passes] for passes in plan]
    totals = [sum(map(sum, passes)) for passes in plan]
    mine = [[ranks[max(trial.rank, 0)] for ranks in passes] for passes in data]
    return data, totals, mine


def expect(serial: Serial, data: list[list[list[Shard]]], totals: list[int]) -> list[Expected]:
    """Each step of the serial loop."""
    expected = []
    for passes, total in zip(data, totals, strict=True):
        ranks = range(len(passes[0]))
        local = [serial.gradient([p[rank] for p in passes], total) for rank in ranks]
        gradient = [sum(parts) for parts in zip(*local, strict=True)]
        last = serial.gradient(passes[-1], total)
        before = serial.weights()
        serial.step(gradient)
        expected.append(Expected(before, serial.weights(), gradient, local, last))
    return expected


def assembled(shards: list[list[Tensor]], sizes: list[int]) -> list[Tensor]:
    """The units' values from the shards of all ranks, `shards[rank][unit]`, without padding."""
    return [
        torch.cat(parts)[:size]
        for parts, size in zip(zip(*shards, strict=True), sizes, strict=True)
    ]


def chunked(per_rank: list[list[Tensor]]) -> list[Tensor]:
    """What the shards hold together where rank r's come from its own `per_rank[r]`."""
    ranks = len(per_rank)
    units = []
    for values in zip(*per_rank, strict=True):
        width = -(-len(values[0]) // ranks)
        parts = [v[r * width : (r + 1) * width] for r, v in enumerate(values)]
        units.append(torch.cat(parts))
    return units


def all_same(got: list[Tensor], right: list[Tensor]) -> bool:
    return all(same(a, b, TOLERANCE) for a, b in zip(got, right, strict=True))


def along(got: list[Tensor], expected: Expected, mistakes: Mistakes = MISTAKES) -> Finding | None:
    """What the gradient in the shards, or the step along it, is instead of the sum."""
    if all_same(got, expected.gradient):
        return None
    ranks = len(expected.local)
    if all_same(got, chunked(expected.local)):
        return mistakes.not_summed()
    if all_same(got, [g / ranks for g in expected.gradient]):
        return mistakes.averaged_again()
    return None


def shard_lengths(got: list[Tensor], sizes: list[int], ranks: int) -> Finding | None:
    """Whether there is a shard of each unit, of the right length."""
    right = [-(-size // ranks) for size in sizes]
    lengths = [len(shard) for shard in got]
    if lengths != right:
        return evidence(f"the shards have {lengths} numbers where {right} are right")
    return None


def values_are(
    got: list[Tensor], right: list[Tensor], name: str, names: Sequence[str]
) -> Finding | None:
    """The first unit whose values differ; `name` has a place for the unit's."""
    for unit, (one, other) in enumerate(zip(got, right, strict=True)):
        if (found := equal(one, other, name.format(names[unit]), TOLERANCE)) is not None:
            return found
    return None


def weights_are(
    step: Step, expected: Expected, trial: Trial, names: Sequence[str]
) -> Finding | None:
    """Whether the model's weights on this rank are those of all shards."""
    if step.weights is None:
        return evidence("the model's parameters have no memory after step()")
    stale = []
    for before, after in zip(expected.before, expected.after, strict=True):
        width = -(-len(after) // trial.size)
        own = slice(trial.rank * width, (trial.rank + 1) * width)
        stale.append(before.clone())
        stale[-1][own] = after[own]
    if not all_same(step.weights, expected.after) and all_same(step.weights, stale):
        return MISTAKES.not_gathered()
    return values_are(step.weights, expected.after, "in the model, of the {} the value", names)


def states_of_shards(step: Step, numbers: int, tensors: int) -> Finding | None:
    """Whether the optimizer's states are those of so many float64 numbers in `tensors` shards."""
    most = SLACK * 2 * 8 * numbers + 8 * tensors  # Adam has a step counter for each tensor
    if step.held.optimizer_states > most:
        got = (step.held.optimizer_states - 8 * tensors) // 16
        return MISTAKES.full_states(got=got, right=numbers)
    return None
