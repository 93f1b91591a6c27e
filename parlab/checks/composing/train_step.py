"""Exercise `train_step`: three steps are compared with those of the serial model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab import training
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, first_difference, has_type
from parlab.checks.base.late_group import RecordingGroup
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.composing import _steps as meshes
from parlab.costs.collectives import ring_bytes
from parlab.models import GPT
from parlab.parallel_gpt import ShardedAdam, Stage

MISTAKES = Mistakes(
    gradients_kept=(
        "when pipeline_pass is called, the gradients still have old numbers. Set `adam.gradient` "
        "to zero first"
    ),
    gradients_detached=(
        "`.grad` of {name} is no view of `adam.gradient` any more, so the update does not see it. "
        "Use `adam.gradient.zero_()`"
    ),
    tied_not_summed=(
        "when zero_step is called, the gradient of the embedding is that of one of its two uses. "
        'Sum it over `groups["embedding"]` before the update'
    ),
    tied_averaged="the gradient of the embedding is averaged over its two copies, expected the sum",
    calls="it calls {name} {got} times, expected once",
    replica_loss=(
        "the result is the loss of this replica alone. Each replica has read other rows: take the "
        "mean of the replicas' losses"
    ),
    loss_not_shared=(
        "the result is 0 because this is not the last stage. Let all stages know the loss"
    ),
    copies_in_loss=(
        "the result is {factor} times the loss. Tensor-parallel ranks have the same loss, and only "
        "one stage has it. How often does your sum count the loss of a replica?"
    ),
    tied_traffic=(
        'a rank sends {got:.0f} bytes in `groups["embedding"]` (on a ring), expected {right:.0f}: '
        "the embedding's gradient, all-reduced once"
    ),
)
LR, MAX_NORM, STEPS = 0.02, 1.0, 3
EPS = 1e-3  # the keys' biases have a gradient of zero, of which Adam would enlarge the rounding


@check_of(MISTAKES)
def train_step(check: Check) -> str:
    """Check the gradients at the update, the losses, and the weights of three steps."""
    for trial in meshes.trials(check):
        for _, mesh in trial.cases(meshes.meshes(trial.size)):
            _case(trial, mesh)
    return (
        "the losses and weights of the serial model in three steps, with the tied gradient summed "
        f"once, on 1 to {check.world_size} ranks in {len(meshes.SIZES[4])} kinds of meshes"
    )


@dataclass
class Seen:
    """What the functions that the learner calls have seen, on one rank."""

    passes: int = 0
    updates: int = 0
    start: Tensor | None = None  # the gradient when pipeline_pass is called
    after_pass: Tensor | None = None
    at_update: Tensor | None = None
    groups: list[Any] = field(default_factory=list)


@dataclass
class Serial:
    """The serial model, its optimizer, and this rank's part of what it should have."""

    model: GPT
    optimizer: torch.optim.Optimizer
    loss: float = 0.0
    losses: list[float] = field(default_factory=list)  # of each replica
    gradient: Tensor | None = None  # of this rank's replica, the embedding summed
    weights: Tensor | None = None  # after the step


def _case(trial: Trial, mesh: meshes.Mesh) -> None:
    seed, m, samples = trial.draw.getrandbits(31), 2, 2
    with meshes.groups_of(trial, mesh) as groups:
        stage = adam = serial = None
        if trial.takes_part:
            stage, model = meshes.stage_of(mesh, trial.rank, groups, seed)
            adam = meshes.sharded_adam(stage, mesh, groups["dp"], LR)
            adam.optimizer.param_groups[0]["eps"] = EPS
            for parameter in stage.parameters():
                parameter.grad.fill_(0.5)
            serial = Serial(model, torch.optim.Adam(model.parameters(), lr=LR, eps=EPS))
        steps = {f"step {number + 1}": number for number in range(STEPS)}
        for _, _number in trial.cases(steps, again=False):
            batch = meshes.draw_tokens(trial.draw, mesh["dp"], m, samples)
            _step(trial, mesh, groups, stage, adam, serial, batch)


def _step(
    trial: Trial,
    mesh: meshes.Mesh,
    groups: Mapping[str, RecordingGroup],
    stage: Stage | None,
    adam: ShardedAdam | None,
    serial: Serial | None,
    batch: tuple[Tensor, Tensor],
) -> None:
    tokens, targets = batch  # (dp, M, b, S)
    seen, own = Seen(), ()
    if trial.takes_part:
        replica = meshes.coordinates(trial.rank, mesh)["dp"]
        _serial_step(serial, stage, tokens, targets, replica)
        own = (stage, adam, tokens[replica], targets[replica], groups)
        if "embedding" in groups:
            groups["embedding"].take_events()

    def pipeline_pass(stage: Stage, inputs: Tensor, labels: Tensor, pp_group: Any) -> Tensor:
        seen.passes += 1
        seen.groups.append(pp_group)
        seen.start = adam.gradient.clone()
        loss = _passes(stage, inputs, labels, pp_group)
        seen.after_pass = adam.gradient.clone()
        return loss

    def zero_step(adam: ShardedAdam, groups: Mapping[str, dist.ProcessGroup]) -> Tensor:
        seen.updates += 1
        seen.at_update = adam.gradient.clone()
        return _update(adam, groups)

    loss = trial.run_function(
        trial.check.function, *own, pipeline_pass, zero_step, seconds=meshes.SECONDS
    )
    trial.require(
        lambda: _calls(seen),
        lambda: _views(stage, adam),
        lambda: _started_at_zero(seen),
        lambda: _gradient(seen, stage, serial),
        lambda: _weights(stage, serial),
        lambda: _loss(loss, serial, mesh, replica, stage),
        lambda: _tied_traffic(groups, stage),
    )


def _serial_step(
    serial: Serial, stage: Stage, tokens: Tensor, targets: Tensor, replica: int
) -> None:
    """Take the step on one rank, and store what this rank should have."""
    model, every = serial.model, []
    serial.losses = []
    for inputs, labels in zip(tokens.flatten(1, 2), targets.flatten(1, 2), strict=True):
        model.zero_grad()
        loss = training.token_loss(model(inputs), labels)
        loss.backward()
        serial.losses.append(loss.item())
        every.append({name: p.grad.clone() for name, p in model.named_parameters()})
    serial.loss = sum(serial.losses) / len(every)
    serial.gradient = meshes.flat(stage.part_of(every[replica]))
    for name, parameter in model.named_parameters():
        parameter.grad = sum(one[name] for one in every) / len(every)
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    serial.optimizer.step()
    serial.weights = meshes.flat_part(stage, model, "weight")


def _passes(stage: Stage, tokens: Tensor, targets: Tensor, group: Any) -> Tensor:
    """Run one micro-batch after the other forward and backward."""
    place, mean = group.rank(), torch.zeros(())
    for inputs, labels in zip(tokens, targets, strict=True):
        x, gradient = inputs, None
        if not stage.first:
            x = torch.empty(stage.activation_shape(len(inputs)))
            dist.recv(x, group=group, group_src=place - 1)
            x.requires_grad_()
        y = stage(x)
        if stage.last:
            y = training.token_loss(y, labels) / len(tokens)
            mean += y.detach()
        else:
            dist.send(y.detach(), group=group, group_dst=place + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, group=group, group_src=place + 1)
        y.backward(gradient)
        if not stage.first:
            dist.send(x.grad, group=group, group_dst=place - 1)
    return mean


def _update(adam: ShardedAdam, groups: Mapping[str, dist.ProcessGroup]) -> Tensor:
    """Average, clip, and apply the gradients."""
    dp = groups["dp"]
    dist.reduce_scatter_single(adam.shard.grad, adam.gradient, group=dp)
    adam.shard.grad /= dp.size()
    norm = torch.zeros(())
    for part, number in zip(adam.parts, adam.copies, strict=True):
        norm += part.square().sum() / number
    dist.all_reduce(norm, group=groups["all"])
    norm.sqrt_()
    adam.shard.grad *= min(1.0, MAX_NORM / (norm.item() + 1e-6))
    adam.optimizer.step()
    dist.all_gather_single(adam.flat, adam.shard.detach(), group=dp)
    return norm


def _calls(seen: Seen) -> Finding | None:
    for name, got in (("pipeline_pass", seen.passes), ("zero_step", seen.updates)):
        if got != 1:
            return MISTAKES.calls(name=name, got=got)
    return None


def _views(stage: Stage, adam: ShardedAdam) -> Finding | None:
    start = adam.gradient.data_ptr()
    for name, parameter in stage.named_parameters():
        if parameter.grad is None or parameter.grad.data_ptr() != start:
            return MISTAKES.gradients_detached(name=name)
        start += parameter.nbytes
    return None


def _started_at_zero(seen: Seen) -> Finding | None:
    return MISTAKES.gradients_kept() if seen.start.any() else None


def _gradient(seen: Seen, stage: Stage, serial: Serial) -> Finding | None:
    """Compare the gradient when zero_step was called."""
    size = len(serial.gradient)
    got, alone = seen.at_update[:size], seen.after_pass[:size]
    halved = got.clone()
    if stage.embedding is not None:
        halved[: stage.embedding.numel()] = serial.gradient[: stage.embedding.numel()] / 2
    wrong = {"tied_not_summed": alone, "tied_averaged": halved}
    name = "the gradient at the call of zero_step"
    return explained(got, serial.gradient, wrong, MISTAKES, name, 100 * meshes.TOLERANCE)


def _weights(stage: Stage, serial: Serial) -> Finding | None:
    got = meshes.flat(dict(stage.named_parameters())).numpy()
    name, tolerance = "the stage's weight after the step", 10 * meshes.TOLERANCE
    return first_difference(got, serial.weights.numpy(), name, tolerance)


def _loss(
    loss: Any, serial: Serial, mesh: meshes.Mesh, replica: int, stage: Stage
) -> Finding | None:
    if (finding := has_type(loss, float, "a float")) is not None:
        return finding

    def near(value: float) -> bool:
        return abs(loss - value) <= 10 * meshes.TOLERANCE * abs(value)

    if near(serial.loss):
        return None
    if loss == 0 and not stage.last:
        return MISTAKES.loss_not_shared()
    if near(serial.losses[replica]):
        return MISTAKES.replica_loss()
    dp, pp, tp = (mesh[dim] for dim in meshes.DIMS)
    for factor in (tp, dp, dp * tp, dp * tp * pp, 1 / pp, tp / pp, dp / pp, 1 / tp, 1 / dp):
        if near(factor * serial.loss):
            return MISTAKES.copies_in_loss(factor=f"{factor:.3g}")
    return observed(f"the result is {loss:.6g}, expected {serial.loss:.6g}")


def _tied_traffic(groups: Mapping[str, RecordingGroup], stage: Stage) -> Finding | None:
    if "embedding" not in groups:
        return None
    group = groups["embedding"]
    events = [event for event in group.events if event.kind == "start"]
    got = sum(ring_bytes(event.op, event.bytes, group.size()) for event in events)
    right = ring_bytes("all_reduce", stage.embedding.nbytes, group.size())
    if got <= 1.01 * right:
        return None
    return MISTAKES.tied_traffic(got=got, right=right)
