"""Exercise `scaled_step`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import close, equal, is_a, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.mixed_precision.masters import Watched

# One tensor's gradients make the norm (PyTorch adds 10⁻⁶ to it), float16 loses most of the others.
LARGE, SMALL = 2.0**-4, 2.0**-22
RATE = 2.0**16
SCALE = 2.0**17  # more than the largest half
TOLERANCE = 1e-4
SECONDS = 20.0
FIRST = 3  # parameters of the first group

MISTAKES = Mistakes(
    unscaled_after_clipping=(
        "the gradients are clipped while they are scaled: `max_norm` is for the true gradient. "
        "Unscale, then clip, then step"
    ),
    not_unscaled="the step goes along the scaled gradient, {scale:g} times the true one",
    not_scaled=(
        "the step is what comes without a scale: gradients below 2⁻²⁴ were zero before you could "
        "do anything. The loss that `backward()` starts from is `scale` times the loss"
    ),
    unscaled_in_16_bits=(
        "the gradients are divided while they are of 16 bits: what the scale has rescued is lost "
        "again. Collect them into float32 first"
    ),
    rate_scaled=(
        "the optimizer's learning rate has changed, from {right:g} to {got:g}: the gradients are "
        "unscaled, and the settings stay. Momentum, weight decay and Adam would not follow"
    ),
    not_clipped="the gradient's norm is {norm:.3g} where max_norm is {most:.3g}: it is not clipped",
    scaled_up="a gradient below max_norm is made longer: clipping only makes it shorter",
    clipped_one_by_one=(
        "each tensor is clipped by its own norm: that turns the gradient. One norm, of all together"
    ),
    norm_of_scaled=(
        "it returns the norm of the scaled gradient: asked for is the true one's. Are the "
        "gradients divided by `scale` before they are clipped?"
    ),
    norm_after="it returns the norm after clipping: asked for is the one before",
    clipped_by_value=(
        "each number is cut to ±max_norm: that turns the gradient. Its norm is what is limited"
    ),
    other_norm="it is clipped by its largest number: asked for is the norm of all, √Σg²",
    first_group_only=(
        "the optimizer has {groups} groups of parameters, and one is clipped by its own norm: one "
        "norm, of all of weights.master"
    ),
    gradient_invented=(
        "self.master[{i}] has a gradient when the optimizer steps, and the parameter had none: an "
        "optimizer would decay it, and move it by its momentum"
    ),
    optimizer_alone=(
        "the copies have moved and the model has not followed: that is the optimizer's step, and "
        "weights.step() is it and the way back"
    ),
    overflows=(
        "the gradients are infinite or NaN, and those of `scale` times the loss are not: {scale:g} "
        "is no half, and the loss is float32. Multiply it as it is"
    ),
    zero_by_zero=(
        "all gradients are zero, and the step goes along NaN: divided by their norm, 0, they are "
        "none any more. They stay zero"
    ),
    no_step="the weights are as before: where is the step?",
)


@dataclass
class Right:
    """The true gradients of one step, as a scaled backward pass in float16 finds them."""

    scaled: list[Tensor]
    unscaled: list[Tensor]
    without: list[Tensor]  # without a scale
    halved: list[Tensor]  # unscaled in float16
    norm: float


@check_of(MISTAKES)
def scaled_step(check: Check) -> str:
    """Check two steps whose gradients float16 cannot hold, clipped and not."""
    with check.trial() as trial:
        for factor, size in ((0.25, 1.0), (4.0, 1.0), (4.0, 0.0)):
            model, x, y = drawn(trial.draw)
            weights = Watched(model, in_two_groups)
            for number in range(2):
                right = gradients(model, x, y, size)
                most = factor * right.norm if size else 1.0
                what = f"max_norm is {factor} times the norm" if size else "all gradients are zero"
                trial.situation = f"{what}, step {number + 1}"
                before = weights.values()
                weights.forget()
                loss = loss_of(model, x, y) * size
                got = trial.run(weights, loss, SCALE, most, seconds=SECONDS)
                trial.require(
                    lambda: is_a(got, float, "a Python float"),
                    lambda: settings(weights),
                    lambda: none_stays(weights),
                    lambda: moved(before, weights, right, most, bool(size)),
                    lambda: norm(got, right, most),
                    lambda: steps(weights),
                    lambda: unused(weights),
                    lambda: model_follows(weights),
                )
    return "scaled in 16 bits, unscaled in float32, then clipped, then stepped"


def in_two_groups(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": list(parameters[:FIRST])}, {"params": list(parameters[FIRST:])}]
    return torch.optim.SGD(groups, lr=RATE)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        self.gain = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def drawn(draw: Random) -> tuple[Small, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        return Small().half(), torch.randn(7, 6).half(), torch.randint(4, (7,))


def loss_of(model: Small, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), y) * SMALL + model.gain.float().sum() * LARGE


def gradients(model: Small, x: Tensor, y: Tensor, size: float) -> Right:
    parameters = [p for p in model.parameters() if p is not model.unused]
    scaled = torch.autograd.grad(loss_of(model, x, y) * size * SCALE, parameters)
    without = torch.autograd.grad(loss_of(model, x, y) * size, parameters)
    unscaled = [g.float() / SCALE for g in scaled]
    return Right(
        [g.float() for g in scaled],
        unscaled,
        [g.float() for g in without],
        [(g / SCALE).float() for g in scaled],
        _norm(unscaled),
    )


def _norm(tensors: list[Tensor]) -> float:
    return torch.cat([t.flatten() for t in tensors]).norm().item()


def clipped(tensors: list[Tensor], most: float) -> list[Tensor]:
    factor = min(1.0, most / max(_norm(tensors), 1e-30))
    return [t * factor for t in tensors]


def settings(weights: Watched) -> Finding | None:
    """The learning rates, during the step and after it."""
    now = [group["lr"] for group in weights.optimizer.param_groups]
    for rate in [rate for rates in [*weights.rates, now] for rate in rates]:
        if rate != RATE:
            return MISTAKES.rate_scaled(got=rate, right=RATE)
    return None


def none_stays(weights: Watched) -> Finding | None:
    for given in weights.given:
        for i, (parameter, gradient) in enumerate(zip(weights.parameters, given, strict=True)):
            if len(parameter) == 2 and parameter.dim() == 1 and gradient is not None:
                return MISTAKES.gradient_invented(i=i)
    return None


def steps(weights: Watched) -> Finding | None:
    if len(weights.given) > weights.own_steps:
        return MISTAKES.optimizer_alone()
    if weights.own_steps != 1:
        return evidence(f"weights.step() is called {weights.own_steps} times")
    return None


def moved(
    before: list[Tensor], weights: Watched, right: Right, most: float, some: bool
) -> Finding | None:
    """What the step went along, instead of the clipped true gradient."""
    used = [i for i, p in enumerate(weights.parameters) if p.dim() != 1 or len(p) != 2]
    taken = [((before[i] - weights.master[i].detach()) / RATE).float() for i in used]

    def along(values: list[Tensor]) -> bool:
        return all(
            bool(((a - b).abs() <= TOLERANCE * float(b.abs().max()) + 1e-12).all())
            for a, b in zip(taken, values, strict=True)
        )

    target = clipped(right.unscaled, most)
    if along(target):
        return None
    if not all(bool(t.isfinite().all()) for t in taken):
        return MISTAKES.overflows(scale=SCALE) if some else MISTAKES.zero_by_zero()
    if some and not any(t.any() for t in taken):
        return MISTAKES.no_step()
    for values, finding in wrong(right, most):
        if along(values):
            return finding
    far = max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
        for a, b in zip(taken, target, strict=True)
    )
    return evidence(
        "the step is not along the true gradient, clipped: some tensor's is off by "
        f"{far:.3g} times its largest number"
    )


def wrong(right: Right, most: float) -> Iterator[tuple[list[Tensor], Finding]]:
    clip_first = [t / SCALE for t in clipped(right.scaled, most)]
    yield clip_first, MISTAKES.unscaled_after_clipping()
    if right.norm > most:
        yield right.unscaled, MISTAKES.not_clipped(norm=right.norm, most=most)
    else:
        longer = [t * most / max(right.norm, 1e-30) for t in right.unscaled]
        yield longer, MISTAKES.scaled_up()
    yield [clipped([t], most)[0] for t in right.unscaled], MISTAKES.clipped_one_by_one()
    cut = [t.clamp(-most, most) for t in right.unscaled]
    yield cut, MISTAKES.clipped_by_value()
    largest = max(float(t.abs().max()) for t in right.unscaled)
    by_largest = [t * min(1.0, most / max(largest, 1e-30)) for t in right.unscaled]
    yield by_largest, MISTAKES.other_norm()
    # `unused`, of the first group, is left out here.
    first, rest = right.unscaled[: FIRST - 1], right.unscaled[FIRST - 1 :]
    for values in ([*clipped(first, most), *rest], [*first, *clipped(rest, most)]):
        yield values, MISTAKES.first_group_only(groups=2)
    yield right.scaled, MISTAKES.not_unscaled(scale=SCALE)
    for values in (right.without, clipped(right.without, most)):
        yield values, MISTAKES.not_scaled()
        yield [t / SCALE for t in values], MISTAKES.not_scaled()
    for values in (right.halved, clipped(right.halved, most)):
        yield values, MISTAKES.unscaled_in_16_bits()


def norm(got: float, right: Right, most: float) -> Finding | None:
    if close(got, right.norm, 1e-4):
        return None
    if close(got, right.norm * SCALE, 1e-3):
        return MISTAKES.norm_of_scaled()
    if close(got, min(right.norm, most), 1e-3):
        return MISTAKES.norm_after()
    return evidence(f"it returns {got:.6g} where the norm is {right.norm:.6g}")


def unused(weights: Watched) -> Finding | None:
    for i, parameter in enumerate(weights.parameters):
        if parameter.dim() == 1 and len(parameter) == 2 and not same(parameter, torch.ones(2)):
            return evidence(f"parameter {i} has no gradient, and has moved")
    return None


def model_follows(weights: Any) -> Finding | None:
    for i, (got, copy) in enumerate(zip(weights.parameters, weights.master, strict=True)):
        if found := equal(got.detach(), copy.detach().half(), f"parameter {i} of the model"):
            return found
    return None
