"""Adam in float64, as it is and as it is often mistaken, and the tensors of a case."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

# Of 16-bit numbers half a gap, since they are rounded once, and a little for float32's own errors.
ROUNDED = {torch.float32: 2e-6, torch.float16: 1.05 * 2.0**-11, torch.bfloat16: 1.05 * 2.0**-8}
ABSOLUTE = 4e-6  # a kernel's 1 − β has the rounding of a float32
MOMENTS = 5e-5


@dataclass(frozen=True)
class Settings:
    """Of a step, as `adam_step` takes them behind its number."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled: bool

    @property
    def values(self) -> tuple:
        return self.lr, self.betas, self.eps, self.weight_decay, self.decoupled


@dataclass(frozen=True)
class State:
    """Parameter, gradient and moments of one tensor, and the number of its next step."""

    p: Tensor
    g: Tensor
    m: Tensor
    v: Tensor
    step: int


def random_settings(draw: Random, *, decay: bool, decoupled: bool) -> Settings:
    """Such that each part of the rule shows: a large ε, betas far from 1."""
    return Settings(
        draw.uniform(0.02, 0.06),
        (draw.uniform(0.6, 0.8), draw.uniform(0.85, 0.95)),
        draw.uniform(0.02, 0.1),
        draw.uniform(0.2, 0.5) if decay else 0.0,
        decoupled,
    )


def stepped(state: State, of: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Parameter and moments after the step, in float64."""
    return _step(state, of)


def _step(
    state: State,
    of: Settings,
    denominator: Callable[[Tensor, float, float], Tensor] = lambda v, c, eps: (v / c).sqrt() + eps,
    old_moments: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    p, g, m, v = (t.double() for t in (state.p, state.g, state.m, state.v))
    beta1, beta2 = of.betas
    if of.decoupled:
        p = p - of.lr * of.weight_decay * p
    else:
        g = g + of.weight_decay * p
    new_m, new_v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    used_m, used_v = (m, v) if old_moments else (new_m, new_v)
    c1, c2 = 1 - beta1**state.step, 1 - beta2**state.step
    return p - of.lr * (used_m / c1) / denominator(used_v, c2, of.eps), new_m, new_v


def mistaken(state: State, of: Settings) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor]]]:
    """What mistakes give, by name, where they give something else than what is right."""
    beta1, beta2 = of.betas
    plain = replace(of, weight_decay=0.0)
    yield "eps_inside", _step(state, of, lambda v, c, eps: (v / c + eps).sqrt())
    yield "eps_uncorrected", _step(state, of, lambda v, c, eps: (v.sqrt() + eps) / c**0.5)
    yield "moments_before_update", _step(state, of, old_moments=True)
    yield "wrong_step", _step(replace(state, step=state.step + 1), of)
    if state.step > 1:
        yield "wrong_step", _step(replace(state, step=state.step - 1), of)
    yield "no_correction", _step(replace(state, step=10**6), of)
    yield "betas_swapped", _step(state, replace(of, betas=(beta2, beta1)))
    if of.weight_decay:
        yield "no_decay", _step(state, plain)
        name = "coupled" if of.decoupled else "decoupled"
        yield name, _step(state, replace(of, decoupled=not of.decoupled))
    if of.weight_decay and of.decoupled:
        whole = replace(of, weight_decay=of.weight_decay / of.lr)
        yield "decay_without_rate", _step(state, whole)
