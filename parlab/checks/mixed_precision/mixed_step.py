"""Exercise `mixed_step`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.messages import something_sent
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.mixed_precision.masters import Watched
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended

RATE = 2.0**-3
SCALE = 2.0**8
TOLERANCE = 0.01  # of a tensor's largest number: gradients have eleven bits
SECONDS = 20.0
NUMBER = 8  # bytes of the largest

MISTAKES = Mistakes(
    skips_alone=(
        "{who} skip{s} the step, the others take it: from here on the ranks' weights differ. "
        "Whether something has overflowed is asked after the reduction, or agreed on"
    ),
    returns_before_the_reduction=(
        "a rank that has overflowed does not take part in the reduction, and the others wait for "
        "it: every rank reduces in every step, and then all skip"
    ),
    stepped_anyway=(
        "a rank's gradients have overflowed, and the step is taken: weights are infinite or NaN "
        "now, and stay so"
    ),
    weights_moved_in_a_skip=(
        "the step is said to be skipped, and the weights have changed (by momentum, or by zeros "
        "for gradients): nothing moves in it"
    ),
    updated_before_the_step=(
        "scaler.update() is called before the step: gradients that are unscaled after it are "
        "divided by another number than the loss was multiplied by. The update is a step's end"
    ),
    not_updated="scaler.update() is not called after {which}: the scale never changes",
    updated_twice="scaler.update() is called {got} times in a step",
    told_the_opposite=(
        "scaler.update() is told {got}: it is to know whether something has overflowed"
    ),
    clipped_before_unscaling=(
        "the gradients are clipped while they are scaled: unscale, then clip, then step"
    ),
    clipped_before_the_mean=(
        "each rank clips its own gradient before the mean: the step depends on how the samples are "
        "dealt out. The norm is that of the mean"
    ),
    not_clipped="the gradients are not clipped to max_norm",
    clipped_one_by_one=(
        "each tensor is clipped by its own norm: that turns the gradient. One norm, of all together"
    ),
    not_averaged=(
        "a rank's step goes along the gradient of its own samples: the ranks' mean is asked for"
    ),
    divided_twice="the step goes along an N-th of the mean: reduce_halves has divided already",
    sent_as_bfloat16=(
        "the gradients are rounded to eight bits on their way: they travel as bfloat16, and the "
        "model's are float16"
    ),
    gradient_invented=(
        "self.master[{i}] has a gradient when the optimizer steps, and the parameter had none: an "
        "optimizer would decay it, and move it by its momentum"
    ),
    optimizer_alone=(
        "the copies have moved and the model has not followed: that is the optimizer's step, and "
        "weights.step() is it and the way back"
    ),
    unscaled_before_the_mean=(
        "scaler.unscale() gets this rank's own gradients: unscaled, small ones are zero in the "
        "float16 that they travel in. First the mean, then unscale it"
    ),
    unscaled_in_16_bits=(
        "scaler.unscale() gets gradients of {got}: divided in 16 bits, what the scale has rescued "
        "is lost again. Collect them into float32 first"
    ),
    not_unscaled="the step goes along the scaled gradient",
    not_scaled="the backward pass is that of the plain loss: it is scaler.scale times the loss",
    summed="the step goes along the sum of the ranks' gradients: the mean is asked for",
    sent_too_much=(
        "a rank hands in {got} bytes where the gradients take {right}: they travel as float16, and "
        "one number more is enough to agree"
    ),
    too_many_messages=(
        "a rank makes {got} collectives: one takes all gradients, one more is enough to agree"
    ),
    returns_the_opposite="it returns {got} where the step was {what}: True is for a step taken",
)


class Scaler:
    """A loss scaler as the exercise before describes it; notes what it is asked."""

    def __init__(self, scale: float, growth_interval: int, weights: Watched) -> None:
        self.weights, self.early = weights, False  # an update before their step
        self.scale, self.good_steps, self.growth_interval = scale, 0, growth_interval
        self.growth_factor, self.backoff_factor = 2.0, 0.5
        self.updates: list[bool] = []
        self.given: list[list[Tensor]] = []

    def unscale(self, gradients: list[Tensor]) -> bool:
        self.given.append([gradient.clone() for gradient in gradients])
        for gradient in gradients:
            gradient /= self.scale
        return not all(bool(torch.isfinite(g).all()) for g in gradients)

    def update(self, overflow: bool) -> None:
        self.updates.append(bool(overflow))
        self.early = not overflow and not self.weights.given
        if overflow:
            self.scale, self.good_steps = self.scale * self.backoff_factor, 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * self.growth_factor, 0


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        self.layers[1].unused = nn.Parameter(torch.ones(2))  # neither the first nor the last

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@dataclass
class Done:
    taken: Any
    before: list[Tensor]
    after: list[Tensor]
    scale: float
    updates: list[bool]
    early: bool


@check_of(MISTAKES)
def mixed_step(check: Check) -> str:
    """Check steps, good and bad on one rank or another, clipped and not, on all ranks and fewer."""
    for number, trial in enumerate(check.trials()):
        plan: list[tuple[int | None, float]] = [(None, 0.5), (trial.size - 1, 4.0), (None, 4.0)]
        if number == 0:
            plan += [(0, 0.5), (None, 4.0), (None, 0.5)]
        _steps(trial, plan)
    return "all ranks take a step, or all skip it: scaled, averaged, unscaled, clipped, stepped"


def _steps(trial: Trial, plan: list[tuple[int | None, float]]) -> None:
    situation, seed = trial.situation, trial.draw.getrandbits(32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Small().half()
        data = [
            [(torch.randn(4, 5).half(), torch.randint(3, (4,))) for _ in range(trial.size)]
            for _ in plan
        ]
    weights = Watched(model, partial(torch.optim.SGD, lr=RATE, momentum=0.5))
    scaler = Scaler(SCALE, growth_interval=1, weights=weights)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0).step()  # imports, at a first step
    velocity: list[Tensor | None] = [None] * 4
    for number, (bad, factor) in enumerate(plan):
        trial.situation = f"{situation}, step {number + 1}" + (
            f", in which rank {bad} overflows" if bad is not None else ""
        )
        losses = [_gradients(model, x, y) for x, y in data[number]]
        mean = [sum(parts) / trial.size for parts in zip(*losses, strict=True)]
        norm = _norm(mean)
        most = factor * norm
        scale, before = scaler.scale, weights.values()
        scaler.updates, scaler.given = [], []
        weights.forget()
        x, y = data[number][max(trial.rank, 0)]
        loss = F.cross_entropy(model(x).float(), y)
        if bad == trial.rank:
            loss = loss * 1e6
        taken = trial.run(
            weights, scaler, loss, most, trial.group, seconds=SECONDS, explain=_waiting(bad)
        )
        done = Done(taken, before, weights.values(), scaler.scale, scaler.updates, scaler.early)
        everyone = trial.gather(_finite_change(done) if trial.here else None)
        trial.require(
            lambda: something_sent(trial),
            lambda: agreed(everyone, bad),
            lambda: skipped(done, bad),
            lambda: moved(done, weights, velocity, losses, mean, most, scale, bad),
            lambda: unscaled(scaler.given, losses[trial.rank], mean, scale, bad),
            lambda: updates(done, bad),
            lambda: at_the_end(done),
            lambda: told(done, bad),
            lambda: scaled(done, scale, bad),
            lambda: as_halves(weights, most > norm),
            lambda: none_stays(weights),
            lambda: sent(trial, sum(g.numel() for g in mean)),
            lambda: unused_kept(weights),
            lambda: followed(weights),
        )


def _waiting(bad: int | None) -> Any:
    """Explains an end in which the rank that overflowed has returned, and others wait for it."""

    def explain(endings: dict[int, Ended]) -> Finding | None:
        if bad is None or bad not in endings:
            return None
        others = [ended for rank, ended in endings.items() if rank != bad]
        if endings[bad].kind == "returned" and any(one.kind == "stuck" for one in others):
            return MISTAKES.returns_before_the_reduction()
        return None

    return explain


def _gradients(model: Small, x: Tensor, y: Tensor) -> list[Tensor]:
    """Of one rank's loss, through 16 bits, scaled as at the beginning."""
    parameters = [p for p in model.parameters() if p is not model.layers[1].unused]
    scaled = torch.autograd.grad(F.cross_entropy(model(x).float(), y) * SCALE, parameters)
    return [g.float() / SCALE for g in scaled]


def _norm(tensors: list[Tensor]) -> float:
    return torch.cat([t.flatten() for t in tensors]).norm().item()


def _finite_change(done: Done) -> tuple[bool, bool]:
    """Whether the weights have changed, and whether they are finite."""
    changed = any(not torch.equal(a, b) for a, b in zip(done.before, done.after, strict=True))
    return changed, all(bool(a.isfinite().all()) for a in done.after)


def agreed(everyone: list[tuple[bool, bool]], bad: int | None) -> Finding | None:
    if bad is None:
        return None
    still = [rank for rank, (changed, _) in enumerate(everyone) if not changed]
    if still and len(still) < len(everyone):
        who = "rank " + ", ".join(map(str, still))
        return MISTAKES.skips_alone(who=who, s="s" if len(still) == 1 else "")
    if not all(finite for _, finite in everyone):
        return MISTAKES.stepped_anyway()
    return None


def skipped(done: Done, bad: int | None) -> Finding | None:
    changed, _ = _finite_change(done)
    return MISTAKES.weights_moved_in_a_skip() if bad is not None and changed else None


def moved(
    done: Done,
    weights: Watched,
    velocity: list[Tensor | None],
    losses: list[list[Tensor]],
    mean: list[Tensor],
    most: float,
    scale: float,
    bad: int | None,
) -> Finding | None:
    """What a good step went along; `velocity` is the momentum of those before."""
    if bad is not None:
        return None
    used = [i for i, p in enumerate(weights.parameters) if p.shape != (2,)]
    taken = [(done.before[i] - done.after[i]) / RATE for i in used]
    old = [torch.zeros_like(t) if v is None else v for t, v in zip(taken, velocity, strict=True)]
    along = [t - 0.5 * v for t, v in zip(taken, old, strict=True)]
    target = clipped(mean, most)
    if _close(along, target):
        velocity[:] = [t.clone() for t in taken]
        return None
    for values, finding in wrong(losses, mean, most, scale):
        if _close(along, values):
            return finding
    off = max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(along, target, strict=True)
    )
    return evidence(
        "the step is not along the clipped mean of the ranks' gradients: some tensor's is off by "
        f"{off:.3g} times its largest number"
    )


def clipped(tensors: list[Tensor], most: float) -> list[Tensor]:
    factor = min(1.0, most / _norm(tensors))
    return [t * factor for t in tensors]


def _close(got: list[Tensor], right: list[Tensor]) -> bool:
    size = max(float(t.abs().max()) for t in right)
    return all(
        bool(((a - b).abs() <= TOLERANCE * size).all()) for a, b in zip(got, right, strict=True)
    )


def wrong(
    losses: list[list[Tensor]], mean: list[Tensor], most: float, scale: float
) -> Iterator[tuple[list[Tensor], Finding]]:
    scaled = [g * scale for g in mean]
    ranks, norm = len(losses), _norm(mean)
    if not _close(clipped([g / 2 for g in mean], most), clipped(mean, most)):
        # Growing each step, the scale is twice as large after its update.
        yield clipped([g / 2 for g in mean], most), MISTAKES.updated_before_the_step()
    yield [g / scale for g in clipped(scaled, most)], MISTAKES.clipped_before_unscaling()
    for values in (clipped(mean, most), mean):
        yield [g / scale for g in values], MISTAKES.not_scaled()
        yield [g * scale for g in values], MISTAKES.not_unscaled()
    if norm > most:
        yield mean, MISTAKES.not_clipped()
    own = [clipped(gradient, most) for gradient in losses]
    averaged = [sum(parts) / ranks for parts in zip(*own, strict=True)]
    yield averaged, MISTAKES.clipped_before_the_mean()
    own = [clipped([g * scale for g in gradient], most) for gradient in losses]
    averaged = [sum(parts) / ranks / scale for parts in zip(*own, strict=True)]
    yield averaged, MISTAKES.clipped_before_the_mean()
    yield [clipped([g], most)[0] for g in mean], MISTAKES.clipped_one_by_one()
    if ranks > 1:
        for gradient in losses:
            yield clipped(gradient, most), MISTAKES.not_averaged()
        yield clipped([g / ranks for g in mean], most), MISTAKES.divided_twice()
        yield clipped([g * ranks for g in mean], most), MISTAKES.summed()
    yield clipped(scaled, most), MISTAKES.not_unscaled()


def unscaled(
    given: list[list[Tensor]], own: list[Tensor], mean: list[Tensor], scale: float, bad: int | None
) -> Finding | None:
    """What a good step gave to scaler.unscale(): the mean, in float32?"""
    for dtype in [g.dtype for gradients in given for g in gradients]:
        if dtype != torch.float32:
            return MISTAKES.unscaled_in_16_bits(got=str(dtype)[6:])

    def got(values: list[Tensor]) -> bool:
        scaled = [g * scale for g in values]
        return any(len(one) == len(scaled) and _alike(one, scaled) for one in given)

    if bad is None and got(own) and not got(mean):
        return MISTAKES.unscaled_before_the_mean()
    return None


def _alike(got: list[Tensor], right: list[Tensor]) -> bool:
    """Whether the numbers are close, tensor by tensor, in shapes that may be flat."""
    pairs = list(zip(got, right, strict=True))
    if any(a.numel() != b.numel() for a, b in pairs):
        return False
    return _close([a.reshape(b.shape) for a, b in pairs], right)


def updates(done: Done, bad: int | None) -> Finding | None:
    if not done.updates:
        return MISTAKES.not_updated(which="a good step" if bad is None else "a skipped step")
    if len(done.updates) > 1:
        return MISTAKES.updated_twice(got=len(done.updates))
    if done.updates[0] != (bad is not None):
        return MISTAKES.told_the_opposite(got=done.updates[0])
    return None


def at_the_end(done: Done) -> Finding | None:
    return MISTAKES.updated_before_the_step() if done.early else None


def told(done: Done, bad: int | None) -> Finding | None:
    if done.taken is None:
        return COMMON.returns_none()
    if not isinstance(done.taken, bool | Tensor) and done.taken not in (0, 1):
        return evidence(f"it returns {done.taken!r}: True or False is asked for")
    if bool(done.taken) != (bad is None):
        what = "taken" if bad is None else "skipped"
        return MISTAKES.returns_the_opposite(got=bool(done.taken), what=what)
    return None


def sent(trial: Trial, numbers: int) -> Finding | None:
    if trial.size == 1:
        return None
    got, calls = trial.bytes_sent(trial.rank), len(trial.calls[trial.rank])
    if got > 2 * numbers + NUMBER:
        return MISTAKES.sent_too_much(got=got, right=2 * numbers)
    return MISTAKES.too_many_messages(got=calls) if calls > 2 else None


def scaled(done: Done, scale: float, bad: int | None) -> Finding | None:
    """Whether the scale is what update() makes of it, and nobody else."""
    right = scale * (2.0 if bad is None else 0.5)
    if done.scale == right:
        return None
    return evidence(f"scaler.scale is {done.scale:g} after the step where {right:g} is right")


def as_halves(weights: Watched, whole: bool) -> Finding | None:
    """Whether gradients that are not clipped have more digits than a bfloat16."""
    there = [g for given in weights.given for g in given if g is not None]
    if whole and there and all(torch.equal(g, g.bfloat16().float()) for g in there):
        return MISTAKES.sent_as_bfloat16()
    return None


def none_stays(weights: Watched) -> Finding | None:
    for given in weights.given:
        for i, (parameter, gradient) in enumerate(zip(weights.parameters, given, strict=True)):
            if parameter.shape == (2,) and gradient is not None:
                return MISTAKES.gradient_invented(i=i)
    return None


def followed(weights: Watched) -> Finding | None:
    if len(weights.given) > weights.own_steps:
        return MISTAKES.optimizer_alone()
    for i, (got, master) in enumerate(zip(weights.parameters, weights.master, strict=True)):
        if found := equal(got.detach(), master.detach().half(), f"parameter {i} of the model"):
            return found
    return None


def unused_kept(weights: Watched) -> Finding | None:
    for parameter in weights.parameters:
        if parameter.shape == (2,) and not same(parameter, torch.ones(2)):
            return evidence("a parameter without gradient has moved")
    return None
