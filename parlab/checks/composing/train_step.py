"""Exercise `train_step`: its losses and gradients are compared with those of the serial model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close, equal, equal_states, explained, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.composing import _steps as meshes
from parlab.checks.composing._meshes import places
from parlab.costs.collectives import ring_bytes
from parlab.parallel_gpt import ShardedAdam, Stage

MISTAKES = Mistakes(
    gradients_kept=(
        "when pipeline_pass is called, the gradients still have old numbers. Set `adam.gradient` "
        "to zero first"
    ),
    gradients_detached=(
        "`.grad` of {name} is no view of `adam.gradient` any more, so the update does not see it. "
        "Do not assign to `.grad`, and clear it with `adam.gradient.zero_()`"
    ),
    tied_not_summed=(
        "when zero_step is called, the gradient of the embedding is that of one of its two uses. "
        'Sum it over `groups["embedding"]` before the update'
    ),
    averaged=(
        "when zero_step is called, the gradient is already the mean of the replicas' gradients. "
        "zero_step averages them itself"
    ),
    replica_loss=(
        "the result is the loss of this replica alone. Each replica has read other rows: take the "
        "mean of the replicas' losses"
    ),
    copies_in_loss=(
        "the result is {factor} times the mean loss. Count each replica's loss once (its "
        "tensor-parallel ranks have the same loss), and divide by the number of replicas"
    ),
    tied_traffic=(
        'a rank sends {got:.0f} bytes in `groups["embedding"]` (on a ring), expected {right:.0f}: '
        "the embedding's gradient, all-reduced once"
    ),
)
LR, STEPS = 0.02, 3


@check_of(MISTAKES)
def train_step(check: Check) -> str:
    """Check the gradients at the update, the losses, and the weights of three steps."""
    meshes.in_each_mesh(check, _case, LR)
    return (
        "the losses of the serial model in three steps, and its gradients at the update, with the "
        f"tied one summed once, on 1 to {check.world_size} ranks, in several meshes"
    )


@dataclass
class Serial:
    """A step of the serial model, and this rank's part of its tensors."""

    losses: list[float]  # of each replica
    work: dict[str, Tensor]  # gradients that pipeline_pass adds
    gradient: Tensor  # of this rank's replica, the embedding summed
    mean: Tensor  # of the gradients of all replicas
    weights: Tensor  # after the step


@dataclass
class Calls:
    """Replacements of `pipeline_pass` and `zero_step`, which set the serial model's results."""

    own: meshes.Setup
    batch: tuple[Tensor, Tensor]
    serial: Serial
    made: list[str] = field(default_factory=list)  # names of calls
    wrong: Finding | None = None  # about an argument
    start: Tensor | None = None  # the gradient when pipeline_pass is called
    after_pass: Tensor | None = None
    at_update: Tensor | None = None

    def pipeline_pass(
        self, stage: Stage, tokens_MbS: Tensor, targets_MbS: Tensor, pp_group: dist.ProcessGroup
    ) -> Tensor:
        tokens, targets = self.batch
        right = {
            "`stage`": stage is self.own.stage,
            "`tokens_MbS`": not equal(tokens_MbS, tokens),
            "`targets_MbS`": not equal(targets_MbS, targets),
            '`groups["pp"]`': pp_group is self.own.groups["pp"],
        }
        self._note("pipeline_pass", right)
        self.start = self.own.adam.gradient.clone()
        for name, parameter in self.own.stage.named_parameters():
            gradient = self.serial.work[name]
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self.after_pass = self.own.adam.gradient.clone()
        return torch.tensor(self.serial.losses[self.own.replica] * self.own.stage.last)

    def zero_step(self, adam: ShardedAdam, groups: Mapping[str, dist.ProcessGroup]) -> Tensor:
        right = {"`adam`": adam is self.own.adam, "`groups`": groups == self.own.groups}
        self._note("zero_step", right)
        self.at_update = self.own.adam.gradient.clone()
        self.own.adam.flat.data[: len(self.serial.weights)] = self.serial.weights
        return self.serial.gradient.norm()

    def _note(self, name: str, right: dict[str, bool]) -> None:
        self.made.append(name)
        wrong = [argument for argument, is_right in right.items() if not is_right]
        if wrong and self.wrong is None:
            self.wrong = observed(f"it does not pass {wrong[0]} to {name}")


def _case(trial: Trial, own: meshes.Setup) -> None:
    if trial.takes_part:
        for parameter in own.stage.parameters():
            parameter.grad.fill_(0.5)
    for _ in trial.cases({f"step {number + 1}": number for number in range(STEPS)}, again=False):
        _step(trial, own)


def _step(trial: Trial, own: meshes.Setup) -> None:
    mesh, stage, groups = own.mesh, own.stage, own.groups
    tokens, targets = meshes.draw_tokens(trial.draw, mesh["dp"], 2, 2)  # (dp, M, b, S)
    calls, arguments = None, ()
    if trial.takes_part:
        serial = _serial_step(own, tokens.flatten(1, 2), targets.flatten(1, 2))
        batch = tokens[own.replica], targets[own.replica]
        calls = Calls(own, batch, serial)
        arguments = (stage, own.adam, *map(torch.clone, batch), groups)
        arguments += calls.pipeline_pass, calls.zero_step
        if "embedding" in groups:
            groups["embedding"].take_events()
    loss = trial.run(*arguments, seconds=meshes.SECONDS)
    losses = trial.gather(loss if isinstance(loss, float) else math.nan)
    trial.require(
        lambda: _each_once(calls.made),
        lambda: calls.wrong,
        lambda: _views(stage, own.adam),
        lambda: MISTAKES.gradients_kept() if calls.start.any() else None,
        lambda: _gradient(calls, serial),
        lambda: equal(
            meshes.flat(dict(stage.named_parameters())), serial.weights, "the stage's new weight"
        ),
        lambda: has_type(loss, float, "a float"),
        lambda: _loss(losses, trial.rank, serial, own),
        lambda: _tied_traffic(own),
    )


def _serial_step(own: meshes.Setup, tokens: Tensor, targets: Tensor) -> Serial:
    """Take a step of gradient descent on one rank. Any update is possible, so this one is short."""
    model, part_of = own.serial, own.stage.part_of
    steps = [
        meshes.loss_and_gradients(own.stage, model, *batch)
        for batch in zip(tokens, targets, strict=True)
    ]
    losses, every, alone = zip(*steps, strict=True)
    work = {n: g.clone() for n, g in part_of(alone[own.replica]).items()}
    replicas = torch.stack([meshes.flat(part_of(gradients)) for gradients in every])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= LR * sum(gradients[name] for gradients in every) / len(every)
    weights = meshes.flat(part_of(dict(model.named_parameters())))
    losses = [loss.item() for loss in losses]
    return Serial(losses, work, replicas[own.replica], replicas.mean(0), weights)


def _each_once(made: list[str]) -> Finding | None:
    for name in ("pipeline_pass", "zero_step"):
        if made.count(name) != 1:
            return observed(f"it calls {name} {made.count(name)} times, expected once")
    return None


def _views(stage: Stage, adam: ShardedAdam) -> Finding | None:
    start = adam.gradient.data_ptr()
    for name, parameter in stage.named_parameters():
        if parameter.grad is None or parameter.grad.data_ptr() != start:
            return MISTAKES.gradients_detached(name=name)
        start += parameter.nbytes
    return None


def _gradient(calls: Calls, serial: Serial) -> Finding | None:
    """Compare the gradient at the call of zero_step."""
    size, parameters = len(serial.gradient), dict(calls.own.stage.named_parameters())
    got, right = calls.at_update[:size], serial.gradient
    wrong = [("tied_not_summed", calls.after_pass[:size]), ("averaged", serial.mean)]
    when = "when zero_step is called, the gradient"
    found = explained(got, right, wrong, MISTAKES, when, meshes.TOLERANCE)
    if found is None or found.mistake:
        return found
    sizes = [p.numel() for p in parameters.values()]
    got, right = (
        {
            name: part.view_as(p)
            for (name, p), part in zip(parameters.items(), flat.split(sizes), strict=True)
        }
        for flat in (got, right)
    )
    return equal_states(got, right, f"{when} of {{}}", meshes.TOLERANCE)


def _loss(losses: list[float], rank: int, serial: Serial, own: meshes.Setup) -> Finding | None:
    loss = losses[rank]
    right = sum(serial.losses) / len(serial.losses)
    if close(loss, right, meshes.TOLERANCE):
        return None
    of_replicas = [serial.losses[at["dp"]] for at in places(own.mesh)]
    pairs = zip(losses, of_replicas, strict=True)
    if all(close(*pair, meshes.TOLERANCE) for pair in pairs):
        return MISTAKES.replica_loss()
    for factor in range(2, math.prod(own.mesh.values()) + 1):
        if close(loss, factor * right, meshes.TOLERANCE):
            return MISTAKES.copies_in_loss(factor=factor)
    return observed(f"the result is {loss:.6g}, expected {right:.6g}")


def _tied_traffic(own: meshes.Setup) -> Finding | None:
    if (group := own.groups.get("embedding")) is None:
        return None
    got = meshes.ring_bytes_in(group)
    right = ring_bytes("all_reduce", own.stage.embedding.nbytes, group.size())
    return MISTAKES.tied_traffic(got=got, right=right) if got > 1.01 * right else None
