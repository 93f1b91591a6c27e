"""Exercise `sharded_adam`."""

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.triton import _adam, _kernels
from parlab.checks.triton._kernels import unless
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import launches
from parlab.rank import device

MISTAKES = Mistakes(
    summed="the step uses the sum of the ranks' gradients. Use their mean",
    own_gradient="each rank updates its shard with its own gradient. Use the mean over all ranks",
    not_gathered="other ranks' shards keep their old parameters. Gather all shards after the step",
    states_whole="a rank holds moments of {got} elements, but its shard has {right}",
    sent_too_much=(
        "a rank sends {got:.0f} bytes (on a ring), expected {right:.0f} for one reduce-scatter and "
        "one all-gather. An all-reduce is both of them"
    ),
)
STEPS = 3
OF = _adam.Settings(0.05, (0.7, 0.9), 0.2, 0.3, True)
SHAPES = [[(5, 3), (7,), (1,)], [(2,)], [(4, 6), (8,)]]


@check_of(MISTAKES)
def sharded_adam(check: Check) -> str:
    """Check steps on all ranks and fewer, with shards that are padded and some that are empty."""
    _kernels.import_optimizers()
    for number, trial in enumerate(check.trials()):
        _steps(trial, SHAPES[number % len(SHAPES)])
    return (
        f"the steps of one rank along the mean gradient, on 1 to {check.world_size} ranks; each "
        "launches once, for its shard, and holds the moments of that alone"
    )


def _steps(trial: Trial, shapes: list[tuple[int, ...]]) -> None:
    """Take steps. Adam updates each number alone, so the parameters are one vector in the check."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    sizes = [math.prod(shape) for shape in shapes]
    start = torch.randn(sum(sizes), generator=generator)
    gradients = torch.randn(STEPS, trial.size, len(start), generator=generator)
    trial.add(f"tensors of {sizes} elements")
    group, counts = trial.group, []

    def tensors(vector: Tensor) -> list[Tensor]:
        parts = vector.to(device, copy=True).split(sizes)
        return [part.clone().view(shape) for part, shape in zip(parts, shapes, strict=True)]

    p = [nn.Parameter(t) for t in tensors(start)]

    def train() -> Any:
        optimizer = trial.check.function(p, group, **asdict(OF))
        for ranks in gradients:
            for parameter, gradient in zip(p, tensors(ranks[trial.rank]), strict=True):
                parameter.grad = gradient
            with launches() as launched:
                optimizer.step()
            counts.append(len(launched))
        return optimizer

    call = _kernels.run(trial, Arena(device), function=train)
    sent = trial.ledger.ring_bytes()
    shard = -(-len(start) // trial.size)
    right, wrong = expected(start, gradients, shard, trial.rank)

    def compare(values: Tensor) -> Finding | None:
        got = torch.cat([t.detach().flatten() for t in p])
        return _adam.compare_parameters([got], [values], "all parameters in one vector")

    trial.require(
        lambda: _kernels.inside(call),
        lambda: something_sent(trial),
        lambda: launched_once(counts),
        lambda: is_sharded(call.result, shard, len(start)),
        lambda: _kernels.explained(compare, right, wrong, MISTAKES),
        lambda: own_part(call.result.shard, right, trial.rank),
        lambda: sends_once(sent, shard, trial.size),
    )


def expected(
    start: Tensor, gradients: Tensor, shard: int, rank: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the parameters after all steps, and what each mistake computes instead."""

    def after(rows: Tensor) -> Tensor:
        return _adam.trained([start], [[row] for row in rows], lambda *_: OF)[0]

    right, owner = after(gradients.mean(1)), torch.arange(len(start)) // shard
    each = torch.stack([after(rows) for rows in gradients.unbind(1)])
    wrong = {
        "summed": after(gradients.sum(1)),
        "own_gradient": each.gather(0, owner[None])[0],
        "not_gathered": torch.where(owner == rank, right, start),
    }
    return right, wrong


def launched_once(counts: list[int]) -> Finding | None:
    got = next((count for count in counts if count != 1), 1)
    return unless(got == 1, f"{got} launches in a step, expected one for the shard")


def is_sharded(optimizer: Any, right: int, whole: int) -> Finding | None:
    shard, adam = getattr(optimizer, "shard", None), getattr(optimizer, "optimizer", None)
    if not isinstance(shard, Tensor) or not isinstance(adam, torch.optim.Optimizer):
        name = "optimizer" if isinstance(shard, Tensor) else "shard"
        return observed(f"it has no `{name}`: see the attributes that its docstring lists")
    got = sum(state["exp_avg"].numel() for state in adam.state.values() if "exp_avg" in state)
    if got > right and shard.numel() in (right, whole):
        return MISTAKES.states_whole(got=got, right=right)
    got = shard.numel()
    return unless(got == right, f"`shard` has {got} elements, expected ⌈Ψ/N⌉ = {right}")


def own_part(shard: Tensor, right: Tensor, rank: int) -> Finding | None:
    """Require that the shard is this rank's part of all parameters, with padding at the end."""
    first = rank * len(shard)
    part = right[first : first + len(shard)]
    part = pad(part, (0, len(shard) - len(part)))
    return _adam.compare_parameters([shard.flatten()], [part], "`shard`")


def sends_once(sent: float, shard: int, ranks: int) -> Finding | None:
    right = STEPS * 2 * 4 * shard * (ranks - 1)
    return MISTAKES.sent_too_much(got=sent, right=right) if sent > 1.01 * right else None
