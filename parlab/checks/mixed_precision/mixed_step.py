"""Exercise `mixed_step`: what the optimizer gets on each rank, in good steps and bad ones."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal_numbers
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.mixed_precision._scaler import (
    SKIPPING,
    RecordingScaler,
    is_flag,
    skipped_by_all,
    updated_once,
    waits_for_others,
)
from parlab.checks.mixed_precision._weights import (
    Gradients,
    RecordingWeights,
    alike,
    clipped,
    each,
    flat,
    norm,
    one_step,
)

SCALE = 2.0**8
TOLERANCE = 0.01  # gradients have eleven bits
SECONDS = 20.0

MISTAKES = Mistakes(
    **SKIPPING.texts,
    clipped_while_scaled=(
        "the gradients are clipped while they are scaled. Unscale, then clip, then step"
    ),
    clipped_before_the_mean=(
        "each rank clips its own gradient before the mean, so the step depends on which rank has "
        "which samples. Clip the mean"
    ),
    unscaled_before_the_mean=(
        "scaler.unscale() got this rank's own gradients. Small ones then become zero in the "
        "float16 reduction: first reduce, then unscale"
    ),
)


class Small(nn.Module):
    """A model with a parameter without gradient, which is neither the first nor the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        self.layers[1].unused = nn.Parameter(torch.ones(2))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x).float(), y)


@check_of(MISTAKES)
def mixed_step(check: Check) -> str:
    """Check steps, good and bad on one rank or another, clipped and not, on all ranks and fewer."""
    for number, trial in enumerate(check.trials()):
        # max_norm divided by the norm of the mean, and the rank that overflows
        plans: list[tuple[float, int | None]] = [(0.5, None), (4.0, trial.size - 1), (4.0, None)]
        if number == 0:
            plans += [(0.5, 0), (4.0, None), (0.5, None)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(trial.draw.getrandbits(32))
            model = Small().half()
        weights = RecordingWeights(model, partial(torch.optim.SGD, lr=2.0**-3, momentum=0.5))
        scaler = RecordingScaler(SCALE)
        weights.optimizer.register_step_pre_hook(
            lambda *_, scaler=scaler: scaler.calls.append("the step")
        )
        cases = {
            f"step {i}" + (f", rank {plan[1]} overflows" if plan[1] is not None else ""): plan
            for i, plan in enumerate(plans, 1)
        }
        for _, plan in trial.cases(cases, again=False):
            _step(trial, model, weights, scaler, *plan)
    return "all ranks take a step, or all skip it: scaled, averaged, unscaled, clipped, stepped"


def _step(
    trial: Trial,
    model: Small,
    weights: RecordingWeights,
    scaler: RecordingScaler,
    factor: float,
    bad: int | None,
) -> None:
    """Take one step, and require that it is right on all ranks."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    inputs = torch.randn(trial.size, 4, 5, generator=generator).half()
    samples = list(zip(inputs, torch.randint(3, (trial.size, 4), generator=generator), strict=True))
    own = [gradients(model, x, y) for x, y in samples]
    mean, overflow, scale = mean_of(own), bad is not None, scaler.scale
    max_norm = factor * norm(mean)
    weights.forget()
    scaler.forget()
    loss = model.loss(*samples[max(trial.rank, 0)]) * (1e6 if trial.rank == bad else 1.0)
    taken = trial.run(
        *(weights, scaler, loss, max_norm, trial.group),
        seconds=SECONDS,
        explain=waits_for_others if overflow else None,
    )
    changed = trial.gather(weights.changed())
    finite = all(bool(copy.isfinite().all()) for copy in weights.master)
    right, variants = clipped(mean, max_norm), wrong(own, max_norm, scale)
    trial.require(
        lambda: something_sent(trial),
        lambda: skipped_by_all(changed, finite) if overflow else None,
        lambda: updated_once(scaler.calls, overflow),
        lambda: None if overflow else one_step(weights, right, variants, MISTAKES, TOLERANCE),
        lambda: unscaled(scaler.given, own[trial.rank], mean, scale, overflow),
        lambda: is_flag(taken, not overflow, "it returns"),
        lambda: equal_numbers(
            [scaler.scale], [scale * (0.5 if overflow else 2.0)], "after the step, the scale", 0.0
        ),
        lambda: sent_as_float16(weights) if factor > 1 else None,
        lambda: sent(trial, len(flat(mean))),
    )


def gradients(model: Small, x: Tensor, y: Tensor) -> Gradients:
    """Return the gradients of one rank's loss, through 16 bits; None for `unused`."""
    scaled = torch.autograd.grad(
        model.loss(x, y) * SCALE, list(model.parameters()), allow_unused=True
    )
    return each(lambda gradient: gradient.float() / SCALE, scaled)


def mean_of(own: list[Gradients]) -> Gradients:
    return [None if parts[0] is None else sum(parts) / len(own) for parts in zip(*own, strict=True)]


def wrong(own: list[Gradients], max_norm: float, scale: float) -> Iterator[tuple[str, Gradients]]:
    """Yield the gradients that each mistake uses."""
    scaled = [each(lambda g: g * scale, one) for one in own]
    clipped_scaled = clipped(mean_of(scaled), max_norm)
    yield "clipped_while_scaled", each(lambda g: g / scale, clipped_scaled)
    yield "clipped_before_the_mean", mean_of([clipped(one, max_norm) for one in own])
    each_scaled = mean_of([clipped(one, max_norm) for one in scaled])
    yield "clipped_before_the_mean", each(lambda g: g / scale, each_scaled)


def unscaled(
    given: list[list[Tensor]], own: Gradients, mean: Gradients, scale: float, overflow: bool
) -> Finding | None:
    """Require that scaler.unscale() gets the mean, in float32."""
    for gradient in (gradient for one in given for gradient in one):
        if gradient.dtype != torch.float32:
            return observed(
                f"scaler.unscale() gets {gradient.dtype} gradients. Collect them into float32 "
                "first, or small ones become zero again"
            )

    for one in () if overflow else given:
        if sum(g.numel() for g in one) == len(flat(mean)):
            got, wrong, right = [flat(one)], [scale * flat(own)], [scale * flat(mean)]
            if alike(got, wrong, TOLERANCE) and not alike(got, right, TOLERANCE):
                return MISTAKES.unscaled_before_the_mean()
    return None


def sent_as_float16(weights: RecordingWeights) -> Finding | None:
    """Require more digits than bfloat16 has, in gradients that were not clipped."""
    found = [g for given in weights.given for g in given if g is not None]
    if found and all(torch.equal(g, g.bfloat16().float()) for g in found):
        return observed("the gradients have only the digits of bfloat16. Send them as float16")
    return None


def sent(trial: Trial, numbers: int) -> Finding | None:
    """Require one all-reduce of 16-bit gradients, and at most one more number."""
    if trial.size == 1:
        return None
    got, calls = trial.bytes_sent(trial.rank), len(trial.calls[trial.rank])
    if got <= 2 * numbers + 8 and calls <= 2:
        return None
    return observed(
        f"this rank hands {got} bytes to {calls} collectives, expected {2 * numbers} bytes in one. "
        "One number more is enough to agree on the overflow"
    )
