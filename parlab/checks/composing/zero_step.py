"""Exercise `zero_step`: three steps are compared with Adam on one rank."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.late_group import Event, RecordingGroup
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.composing import _steps as meshes
from parlab.costs.collectives import ring_bytes
from parlab.models import GPTConfig
from parlab.parallel_gpt import ShardedAdam, Stage, serial_gpt

MISTAKES = Mistakes(
    summed=(
        "this is the norm of the sum of the replicas' gradients, expected that of their mean. Adam "
        "hides this factor, but clipping does not"
    ),
    not_averaged=(
        "this is the norm before the replicas' gradients are averaged. First average them, and "
        "then call gradient_norm"
    ),
    norm_of_part=(
        'this is the norm of a part of the model. Call gradient_norm with `groups["all"]`, because '
        "all ranks have parts of the gradient"
    ),
    copies_ignored=(
        "this norm counts each copy of a gradient. Pass `adam.copies` to gradient_norm"
    ),
    clipped_norm="this is the norm after clipping. Return the norm before it",
    not_clipped="the gradient is not clipped, although its norm is larger than `max_norm`",
    lengthened=(
        "the gradient is multiplied by `max_norm` / norm although its norm is smaller, so it got "
        "longer. Clip only larger ones"
    ),
    not_gathered=(
        "this rank's `adam.flat` has new values in its own shard only. Gather those of the others"
    ),
    memory_replaced=(
        "{name} has another memory than before, which the stage's parameters do not share. Write "
        "into it"
    ),
    norm_calls="it calls gradient_norm {got} times, expected once",
    sends_more=(
        "it makes the calls {got}, in which a rank sends {bytes:.0f} bytes (on rings) to other "
        "replicas, expected at most {right:.0f}. Use one reduce-scatter and one all-gather"
    ),
)
STEPS = {"a gradient to clip": 2.0, "a short gradient": 0.01, "a gradient of zero": 0.0}
MAX_NORM, LR = 5.0, 0.01


@check_of(MISTAKES)
def zero_step(check: Check) -> str:
    """Check the norm, Adam's states, the weights, and the traffic of three steps."""
    for trial in meshes.trials(check):
        for _, mesh in trial.cases(meshes.meshes(trial.size)):
            _case(trial, mesh)
    return (
        "norm, clipping, and Adam's steps on the shard, with one reduce-scatter and one "
        f"all-gather, in all meshes of 1 to {min(check.world_size, 4)} ranks"
    )


@dataclass
class Norms:
    """A right `gradient_norm`, which remembers its calls."""

    calls: list[tuple[list[Tensor], list[int], Any]] = field(default_factory=list)

    def __call__(
        self, gradients: Sequence[Tensor], copies: Sequence[int], group: dist.ProcessGroup
    ) -> Tensor:
        parts, counts = list(gradients), list(copies)
        self.calls.append(([g.detach().clone() for g in parts], counts, group))
        total = torch.zeros(())
        for gradient, number in zip(parts, counts, strict=True):
            total += gradient.detach().float().square().sum() / number
        dist.all_reduce(total, group=group)
        return total.sqrt()


@dataclass
class State:
    """What a rank should have: all weights of its stage, and Adam for all of them."""

    weights: nn.Parameter
    optimizer: torch.optim.Optimizer


def _case(trial: Trial, mesh: meshes.Mesh) -> None:
    seed = trial.draw.getrandbits(31)
    with meshes.groups_of(trial, mesh) as groups:
        stage = adam = state = None
        if trial.takes_part:
            stage, _ = meshes.stage_of(mesh, trial.rank, groups, seed)
            adam = meshes.sharded_adam(stage, mesh, groups["dp"], LR)
            weights = nn.Parameter(adam.flat.detach().clone())
            state = State(weights, torch.optim.Adam([weights], lr=LR))
        for _, scale in trial.cases(STEPS, again=False):
            _step(trial, mesh, groups, stage, adam, state, scale)


def _step(
    trial: Trial,
    mesh: meshes.Mesh,
    groups: Mapping[str, RecordingGroup],
    stage: Stage | None,
    adam: ShardedAdam | None,
    state: State | None,
    scale: float,
) -> None:
    seed, norms = trial.draw.getrandbits(31), Norms()
    replicas: list[Tensor] = []
    if trial.takes_part:
        replicas = [_padded(g, adam) for g in _gradients(stage, mesh, seed, scale)]
        adam.gradient.copy_(replicas[meshes.coordinates(trial.rank, mesh)["dp"]])
        groups["dp"].take_events()
        places = _places(adam)
        before = adam.flat.detach().clone()
    norm = trial.run_function(
        lambda: trial.check.function(adam, groups, MAX_NORM, norms), seconds=meshes.SECONDS
    )
    right_norm = _whole_norm(mesh, seed, scale)
    wrong_norms = trial.gather(adam and _squares(adam, replicas, groups))
    if trial.takes_part:
        mean = sum(replicas) / len(replicas)
        clip = min(1.0, MAX_NORM / right_norm) if right_norm else 1.0
        expected = _expected(state, mean * clip)
        length = len(adam.shard)
        own = slice(groups["dp"].rank() * length, (groups["dp"].rank() + 1) * length)
    trial.require(
        lambda: _moved(adam, places),
        lambda: _norm(norm, right_norm, wrong_norms, trial, mesh, groups),
        lambda: None if len(norms.calls) == 1 else MISTAKES.norm_calls(got=len(norms.calls)),
        lambda: _moments(adam, expected[own], mean[own], right_norm, state),
        lambda: _weights(adam, before, own, state),
        lambda: _traffic(groups["dp"], adam),
    )


def _gradients(stage: Stage, mesh: meshes.Mesh, seed: int, scale: float) -> Iterator[Tensor]:
    """Yield the stage's part of each replica's gradient, which is the same on all copies."""
    for whole in _whole_gradients(mesh, seed, scale):
        yield meshes.flat(stage.part_of(whole))


def _whole_gradients(mesh: meshes.Mesh, seed: int, scale: float) -> Iterator[dict[str, Tensor]]:
    shapes = _shapes(meshes.config_for(mesh))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(mesh["dp"]):
        yield {n: scale * torch.randn(shape, generator=generator) for n, shape in shapes.items()}


@functools.cache
def _shapes(config: GPTConfig) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in serial_gpt(config, 0).named_parameters()}


def _padded(gradient: Tensor, adam: ShardedAdam) -> Tensor:
    whole = torch.zeros_like(adam.flat)
    whole[: len(gradient)] = gradient
    return whole


def _whole_norm(mesh: meshes.Mesh, seed: int, scale: float) -> float:
    """Return the norm of the serial model's mean gradient."""
    every = [meshes.flat(whole) for whole in _whole_gradients(mesh, seed, scale)]
    return (sum(every) / len(every)).norm().item()


def _squares(
    adam: ShardedAdam, replicas: list[Tensor], groups: Mapping[str, RecordingGroup]
) -> dict[str, float]:
    """Return this rank's sums of squares, of which mistakes make norms."""
    length, rank = len(adam.shard), groups["dp"].rank()
    own = slice(rank * length, (rank + 1) * length)
    mean = (sum(replicas) / len(replicas))[own]
    alone = replicas[rank][own]
    sizes = [len(part) for part in adam.parts]

    def square(gradient: Tensor, *, counted: bool = True) -> float:
        copies = adam.copies if counted else [1] * len(sizes)
        parts = gradient[: sum(sizes)].split(sizes)
        return sum(p.square().sum().item() / n for p, n in zip(parts, copies, strict=True))

    return {
        "mean": square(mean),
        "all_copies": square(mean, counted=False),
        "alone": square(alone),
    }


def _norm(
    norm: Any,
    right: float,
    squares: list[dict[str, float]],
    trial: Trial,
    mesh: meshes.Mesh,
    groups: Mapping[str, RecordingGroup],
) -> Finding | None:
    """Compare the returned norm."""

    def of(key: str, ranks: Sequence[int]) -> Tensor:
        return torch.tensor(sum(squares[rank][key] for rank in ranks)).sqrt()

    everyone = range(trial.size)
    variants = [
        ("summed", torch.tensor(right * mesh["dp"])),
        ("copies_ignored", of("all_copies", everyone)),
        ("not_averaged", of("alone", everyone)),
        ("clipped_norm", torch.tensor(min(right, MAX_NORM))),
    ]
    members = meshes.group_ranks(trial.rank, mesh)
    parts = [[trial.rank], *(members[name] for name in members if name != "all")]
    variants += [
        ("norm_of_part", of(key, part)) for part in parts for key in ("mean", "all_copies")
    ]
    name = "the returned norm"
    return explained(norm, torch.tensor(right), variants, MISTAKES, name, meshes.TOLERANCE)


def _expected(state: State, gradient: Tensor) -> Tensor:
    """Take the step on one rank; return Adam's first moment."""
    state.weights.grad = gradient
    state.optimizer.step()
    return state.optimizer.state[state.weights]["exp_avg"]


def _moments(
    adam: ShardedAdam, right: Tensor, mean: Tensor, norm: float, state: State
) -> Finding | None:
    """Compare Adam's first moment, which has the gradient's length. Adam's step hides it."""
    states = adam.optimizer.state.get(adam.shard)
    if not states:
        return observed("Adam has taken no step on `adam.shard`: call `adam.optimizer.step()`")
    steps, expected = (int(s["step"].item()) for s in (states, _states(state)))
    if steps != expected:
        return observed(f"Adam has taken {steps} steps, expected {expected}")
    factor = MAX_NORM / norm if norm else 1.0
    clip = min(1.0, factor)
    wrong = {}
    if factor < 1:
        wrong["not_clipped"] = right + 0.1 * (1 - clip) * mean
    else:
        wrong["lengthened"] = right + 0.1 * (factor - 1) * mean
    got = states["exp_avg"]
    return explained(got, right, wrong, MISTAKES, "Adam's moment of the shard", meshes.TOLERANCE)


def _states(state: State) -> dict[str, Tensor]:
    return state.optimizer.state[state.weights]


def _weights(adam: ShardedAdam, before: Tensor, own: slice, state: State) -> Finding | None:
    right = state.weights.detach()
    mine = before.clone()
    mine[own] = right[own]
    got = adam.flat.detach()
    return explained(got, right, {"not_gathered": mine}, MISTAKES, "`adam.flat`", meshes.TOLERANCE)


def _places(adam: ShardedAdam) -> dict[str, int]:
    tensors = {
        "`adam.flat`": adam.flat,
        "`adam.gradient`": adam.gradient,
        "`adam.shard`": adam.shard,
        "`adam.shard.grad`": adam.shard.grad,
    }
    return {name: -1 if t is None else t.data_ptr() for name, t in tensors.items()}


def _moved(adam: ShardedAdam, before: Mapping[str, int]) -> Finding | None:
    for name, place in _places(adam).items():
        if place != before[name]:
            return MISTAKES.memory_replaced(name=name)
    return None


def _traffic(group: RecordingGroup, adam: ShardedAdam) -> Finding | None:
    """Allow a reduce-scatter and an all-gather of the stage's weights."""
    started = [event for event in group.events if event.kind == "start"]
    got = sum(ring_bytes(event.op, event.bytes, group.size()) for event in started)
    right = 2 * ring_bytes("all_gather", adam.flat.nbytes, group.size())
    if got <= 1.01 * right + 8:
        return None
    return MISTAKES.sends_more(got=_names(started), bytes=got, right=right)


def _names(events: list[Event]) -> str:
    return ", ".join(event.op for event in events)
