"""Exercise `zero_step`: three steps are compared with Adam on one rank."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, explained
from parlab.checks.base.late_group import Event, RecordingGroup
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.composing import _steps as meshes
from parlab.costs.collectives import ring_bytes
from parlab.models import GPTConfig
from parlab.parallel_gpt import ShardedAdam, serial_gpt

MISTAKES = Mistakes(
    summed=(
        "gradient_norm gets the sum of the replicas' gradients, expected their mean. Adam hides "
        "this factor, but clipping does not"
    ),
    copies_ignored=(
        "gradient_norm gets the copies {got}. Pass `adam.copies`, or the norm counts some "
        "gradients too often"
    ),
    clipped_by_own_norm=(
        "the gradient is clipped by the norm of this rank's shard. Use the norm of the whole "
        "model's gradient, which gradient_norm returns, so that all ranks use the same factor"
    ),
    not_gathered=(
        "this rank's `adam.flat` has new values in its own shard only. Gather those of the others"
    ),
    memory_replaced=(
        "{name} has another memory than before, which the stage's parameters do not share. Write "
        "into it"
    ),
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
    meshes.in_each_mesh(check, _case, LR)
    return (
        "norm, clipping, and Adam's steps on the shard, with one reduce-scatter and one "
        f"all-gather, in all meshes of 1 to {min(check.world_size, 4)} ranks"
    )


class Norms:
    """Replace `gradient_norm`: return the right norm, and remember the arguments."""

    def __init__(self, norm: float) -> None:
        self.norm = norm
        self.calls: list[tuple[list[Tensor], list[int], Any]] = []

    def __call__(
        self, gradients: Sequence[Tensor], copies: Sequence[int], group: dist.ProcessGroup
    ) -> Tensor:
        self.calls.append(([g.detach().clone() for g in gradients], list(copies), group))
        return torch.tensor(self.norm)


@dataclass
class State:
    """What a rank should have: all weights of its stage, and Adam for all of them."""

    weights: nn.Parameter
    optimizer: torch.optim.Optimizer


def _case(trial: Trial, own: meshes.Setup) -> None:
    state = None
    if trial.takes_part:
        weights = nn.Parameter(own.adam.flat.detach().clone())
        state = State(weights, torch.optim.Adam([weights], lr=LR))
    for _, scale in trial.cases(STEPS, again=False):
        _step(trial, own, state, scale)


def _step(trial: Trial, own: meshes.Setup, state: State | None, scale: float) -> None:
    adam, seed, groups = own.adam, trial.draw.getrandbits(31), own.groups
    right_norm = _whole_norm(own.mesh, seed, scale)
    norms = Norms(right_norm)
    if trial.takes_part:
        replicas = [_padded(g, adam) for g in _gradients(own, seed, scale)]
        adam.gradient.copy_(replicas[own.replica])
        groups["dp"].take_events()
        places, before = _places(adam), adam.flat.detach().clone()
        length = len(adam.shard)
        part = slice(groups["dp"].rank() * length, (groups["dp"].rank() + 1) * length)
        mean = sum(replicas) / len(replicas)
    norm = trial.run(adam, groups, MAX_NORM, norms, seconds=meshes.SECONDS)
    if trial.takes_part:
        clip = min(1.0, MAX_NORM / right_norm) if right_norm else 1.0
        expected = _expected(state, mean * clip)[part]
    trial.require(
        lambda: _moved(adam, places),
        lambda: equal(norm, torch.tensor(right_norm), "the returned norm", meshes.TOLERANCE),
        lambda: _arguments(norms, adam, mean[part], len(replicas), trial.size),
        lambda: _moments(adam, expected, mean[part], right_norm, state),
        lambda: _weights(adam, before, part, state),
        lambda: _traffic(groups["dp"], adam),
    )


def _gradients(own: meshes.Setup, seed: int, scale: float) -> Iterator[Tensor]:
    """Yield the stage's part of each replica's gradient, which is the same on all copies."""
    for whole in _whole_gradients(own.mesh, seed, scale):
        yield meshes.flat(own.stage.part_of(whole))


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


def _arguments(
    norms: Norms, adam: ShardedAdam, right: Tensor, replicas: int, ranks: int
) -> Finding | None:
    """Compare what gradient_norm got with this rank's part of the mean gradient."""
    if len(norms.calls) != 1:
        return observed(f"it calls gradient_norm {len(norms.calls)} times, expected once")
    gradients, copies, group = norms.calls[0]
    if group.size() != ranks:
        return observed(
            f"gradient_norm gets a group of {group.size()} ranks, expected all {ranks}, because "
            "all have parts of the gradient"
        )
    sizes, expected = ([len(one) for one in parts] for parts in (gradients, adam.parts))
    if sizes != expected:
        return observed(
            f"gradient_norm gets {len(sizes)} gradients with {sum(sizes)} numbers, expected the "
            f"{len(expected)} parts of `adam.parts` with {sum(expected)}"
        )
    if copies != adam.copies:
        return MISTAKES.copies_ignored(got=copies)
    name, right = "the gradient that gradient_norm gets", right[: sum(sizes)]
    got, wrong = torch.cat([right[:0], *gradients]), {"summed": right * replicas}
    return explained(got, right, wrong, MISTAKES, name, meshes.TOLERANCE)


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
    # After this step, the moment has a tenth of the shard's gradient in it.
    factor, own = (min(1.0, MAX_NORM / one) if one else 1.0 for one in (norm, mean.norm().item()))
    wrong = {"clipped_by_own_norm": right + 0.1 * (own - factor) * mean}
    name = "the mean of this shard's gradients that Adam keeps (`exp_avg`)"
    return explained(states["exp_avg"], right, wrong, MISTAKES, name, meshes.TOLERANCE)


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
