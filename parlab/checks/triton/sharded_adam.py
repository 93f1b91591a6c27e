"""Exercise `sharded_adam`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.messages import something_sent
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.trial import Trial
from parlab.checks.triton.adams import ABSOLUTE, ROUNDED, Settings, State, stepped
from parlab.checks.triton.watched import Run, inside, is_near, near, run, warm
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import launches
from parlab.rank import device

MISTAKES = Mistakes(
    summed="the step is along the sum of the ranks' gradients: the mean is asked for",
    own_gradient="each rank updates its shard with its own gradient: it is to be the mean over all",
    not_gathered=(
        "parameters of other ranks' shards are as they were: gather the shards after the step"
    ),
    shard_not_gathered="the shard has taken the step, and the parameters have not: copy it back",
    states_whole="a rank holds moments of {got} elements, where its shard has {right}",
    wrong_shard="shard has {got} elements where ⌈{numbers}/{ranks}⌉ = {right} are right",
    launched_otherwise="{got} launches in a step, where one updates the shard",
    sent_too_much=(
        "a rank sends {got:.0f} bytes (on a ring) where a reduce-scatter and an all-gather take "
        "{right:.0f}: an all-reduce is both at once, and more than is needed for one"
    ),
)

STEPS = 3
OF = Settings(0.05, (0.7, 0.9), 0.2, 0.3, True)


@check_of(MISTAKES)
def sharded_adam(check: Check) -> str:
    """Check steps on all ranks and fewer, with shards that are padded and some that are empty."""
    warm()
    shapes = [[(5, 3), (7,), (1,)], [(2,)], [(4, 6), (8,)]]
    for number, trial in enumerate(check.trials()):
        _steps(trial, shapes[number % len(shapes)])
    return (
        f"the steps of one rank along the mean gradient, on 1 to {check.world_size} ranks; each "
        "launches once, for its shard, and holds the moments of that alone"
    )


def _steps(trial: Trial, shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    gradients = [
        [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(trial.size)]
        for _ in range(STEPS)
    ]
    trial.add(f"tensors of {[t.numel() for t in start]} elements")
    p = [nn.Parameter(t.to(device, copy=True)) for t in start]
    per_step: list[int] = []
    group, mine = trial.group, max(trial.rank, 0)

    def train() -> Any:
        settings = {"lr": OF.lr, "betas": OF.betas, "eps": OF.eps}
        settings |= {"weight_decay": OF.weight_decay, "decoupled_weight_decay": OF.decoupled}
        made = trial.check.function(p, group, **settings)
        for step in range(STEPS):
            for parameter, gradient in zip(p, gradients[step][mine], strict=True):
                parameter.grad = gradient.to(device, copy=True)
            with launches() as launched:
                made.step()
            per_step.append(len(launched))
        return made

    done = run(trial, Arena(device), function=train)
    sent = trial.ledger.ring_bytes()
    mean = [[sum(row) / trial.size for row in zip(*ranks, strict=True)] for ranks in gradients]
    right = trained(start, mean)
    count = sum(t.numel() for t in start)
    trial.require(
        lambda: inside(done),
        lambda: something_sent(trial) if trial.size > 1 else None,
        lambda: launched_once(per_step),
        lambda: shard(done, count, trial.size),
        lambda: values(p, right, wrong(start, gradients, mean, trial, done)),
        lambda: own_part(done.result.shard, right, trial),
        lambda: little_sent(sent, count, trial.size),
    )


def trained(start: list[Tensor], gradients: list[list[Tensor]], factor: float = 1) -> list[Tensor]:
    """Parameters after the steps, in float64."""
    found = []
    for number, p in enumerate(start):
        m = v = torch.zeros(p.shape, dtype=torch.float64)
        for step, row in enumerate(gradients):
            p, m, v = stepped(State(p, row[number] * factor, m, v, step + 1), OF)
        found.append(p)
    return found


def launched_once(per_step: list[int]) -> Finding | None:
    for got in per_step:
        if got != 1:
            return MISTAKES.launched_otherwise(got=got)
    return None


def shard(done: Run, numbers: int, ranks: int) -> Finding | None:
    right = -(-numbers // ranks)
    made = done.result
    if not isinstance(getattr(made, "shard", None), Tensor):
        return evidence("it has no tensor `shard`")
    if not isinstance(getattr(made, "optimizer", None), torch.optim.Optimizer):
        return evidence("it has no `optimizer`, the FusedAdam of its shard")
    states = [
        value
        for state in made.optimizer.state.values()
        for name, value in state.items()
        if name == "exp_avg"
    ]
    got = sum(value.numel() for value in states)
    if made.shard.numel() in (right, numbers) and got > right:
        return MISTAKES.states_whole(got=got, right=right)
    if made.shard.numel() != right:
        return MISTAKES.wrong_shard(
            got=made.shard.numel(), numbers=numbers, ranks=ranks, right=right
        )
    return None


def values(
    got: list[nn.Parameter], right: list[Tensor], wrong: Iterator[tuple[list[Tensor], Finding]]
) -> Finding | None:
    def alike(other: list[Tensor]) -> bool:
        relative = 3 * ROUNDED[torch.float32]
        return all(is_near(a, b, relative, 3 * ABSOLUTE) for a, b in zip(got, other, strict=True))

    if alike(right):
        return None
    for other, finding in wrong:
        if alike(other):
            return finding
    for number, (one, other) in enumerate(zip(got, right, strict=True)):
        if found := near(one, other, f"parameter {number}", 1e-5, 3 * ABSOLUTE):
            return found
    return None


def wrong(
    start: list[Tensor],
    gradients: list[list[list[Tensor]]],
    mean: list[list[Tensor]],
    trial: Trial,
    done: Run,
) -> Iterator[tuple[list[Tensor], Finding]]:
    size, sizes = trial.size, [t.numel() for t in start]
    part = -(-sum(sizes) // size)

    def joined(tensors: list[Tensor]) -> Tensor:
        return torch.cat([t.flatten().double() for t in tensors])

    def parted(vector: Tensor) -> list[Tensor]:
        return [v.view(t.shape) for v, t in zip(vector.split(sizes), start, strict=True)]

    if size > 1:
        yield trained(start, mean, size), MISTAKES.summed()
    each = [joined(trained(start, [row[r] for row in gradients])) for r in range(size)]
    yield (
        parted(torch.cat([v.split(part)[r] for r, v in enumerate(each) if r * part < len(v)])),
        (MISTAKES.own_gradient()),
    )
    right, old = joined(trained(start, mean)), joined(start)
    own = torch.zeros(len(old), dtype=torch.bool)
    own[part * trial.rank : part * (trial.rank + 1)] = True
    yield parted(old), MISTAKES.shard_not_gathered()
    yield parted(torch.where(own, right, old)), MISTAKES.not_gathered()


def own_part(shard: Tensor, right: list[Tensor], trial: Trial) -> Finding | None:
    """Whether the shard is this rank's part of the vector, with the padding at its end."""
    whole = torch.cat([t.flatten() for t in right])
    whole = torch.nn.functional.pad(whole, (0, -len(whole) % trial.size))
    part = whole.chunk(trial.size)[trial.rank]
    return near(shard.flatten(), part, "`shard`", 1e-5, 3 * ABSOLUTE)


def little_sent(sent: float, numbers: int, ranks: int) -> Finding | None:
    right = STEPS * 2 * 4 * -(-numbers // ranks) * (ranks - 1)
    if ranks > 1 and sent > 1.01 * right:
        return MISTAKES.sent_too_much(got=sent, right=right)
    return None
