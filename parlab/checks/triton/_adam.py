"""Adam in float64, and the tensors of one call of a learner's Adam."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from parlab.checks.base.mistakes import Finding
from parlab.checks.base.trial import Trial
from parlab.checks.triton._kernels import (
    ROUNDED,
    KernelCall,
    alike,
    by_kernel,
    first,
    loads_at_most,
    near,
    numbers,
    unless,
)
from parlab.kernels.buffers import Arena

ABSOLUTE = 4e-6  # a kernel's 1 − β is rounded to float32
MOMENTS = 5e-5
FLOAT32 = 2e-6
AFTER_STEPS = 3  # a step may round the other way, so that a 16-bit number is a gap off


@dataclass(frozen=True)
class Settings:
    """The settings of a step, named as in torch.optim.Adam and in the order of `adam_step`."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False


@dataclass(frozen=True)
class State:
    """The parameter, gradient, and moments of one tensor, and the number of its next step."""

    p: Tensor
    g: Tensor
    m: Tensor
    v: Tensor
    step: int

    @property
    def changing(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.m, self.v, self.p

    def copy(self) -> "State":
        return State(*(t.cpu().clone() for t in (self.p, self.g, self.m, self.v)), self.step)


def random_settings(draw: Random, decay: str) -> Settings:
    """Draw settings that show each part of the rule: a large ε, and betas far from 1.

    `decay` is "no", "coupled", or "decoupled".
    """
    return Settings(
        draw.uniform(0.02, 0.06),
        (draw.uniform(0.6, 0.8), draw.uniform(0.85, 0.95)),
        draw.uniform(0.02, 0.1),
        0.0 if decay == "no" else draw.uniform(0.2, 0.5),
        decay == "decoupled",
    )


def random_state(trial: Trial, shape: tuple[int, ...], dtype: torch.dtype, step: int) -> State:
    """Draw numbers, with moments like those after some steps."""
    p, g, m, v = (numbers(trial, *shape) for _ in range(4))
    return State(p.to(dtype), (g * 0.3).to(dtype), m * 0.1, v * v * 0.05 + 1e-3, step)


def placed(arena: Arena, state: State, suffix: str = "", shift: int = 0) -> State:
    """Return the state in guarded memory, named after the learner's arguments.

    `shift` moves each tensor by this many elements from an aligned address.
    """
    named = {"parameter": state.p, "gradient": state.g, "exp_avg": state.m, "exp_avg_sq": state.v}
    return State(
        *(arena.place(f"{n}{suffix}", t, shift=shift) for n, t in named.items()), state.step
    )


def stepped(state: State, of: Settings, eps_inside: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return moments and parameter after the step, in float64."""
    p, g, m, v = (t.double() for t in (state.p, state.g, state.m, state.v))
    beta1, beta2 = of.betas
    if of.decoupled_weight_decay:
        p = p - of.lr * of.weight_decay * p
    else:
        g = g + of.weight_decay * p
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    mean, square = m / (1 - beta1**state.step), v / (1 - beta2**state.step)
    root = (square + of.eps).sqrt() if eps_inside else square.sqrt() + of.eps
    return m, v, p - of.lr * mean / root


def trained(
    start: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor | None]],
    settings: Callable[[int, int], Settings],
    count_missing: bool = False,
) -> list[Tensor]:
    """Return the parameters after steps from moments of zero, each rounded to its dtype.

    Args:
        gradients: by step, the gradient of each parameter, or None.
        settings: returns the settings for a step and a parameter, both counted from 0.
        count_missing: whether a step without a gradient counts.
    """
    found = []
    for i, p in enumerate(start):
        count, m, v = 0, torch.zeros(p.shape), torch.zeros(p.shape)
        for step, row in enumerate(gradients):
            gradient = row[i]
            count += count_missing or gradient is not None
            if gradient is not None:
                m, v, now = stepped(State(p, gradient, m, v, count), settings(step, i))
                p = now.to(p.dtype)
        found.append(p)
    return found


def compare_step(
    got: Sequence[Tensor], right: Sequence[Tensor], suffix: str = ""
) -> Finding | None:
    """Compare the moments and the parameter, which follows from them, after one step."""
    relative = ROUNDED.get(got[2].dtype, FLOAT32)
    return (
        near(got[0], right[0], f"`exp_avg{suffix}`", MOMENTS)
        or near(got[1], right[1], f"`exp_avg_sq{suffix}`", MOMENTS)
        or near(got[2], right[2], f"`parameter{suffix}`", relative, ABSOLUTE)
    )


def compare_parameters(got: Sequence[Tensor], right: Sequence[Tensor]) -> Finding | None:
    """Compare parameters after several steps."""
    tolerances = [AFTER_STEPS * ROUNDED.get(one.dtype, FLOAT32) for one in got]
    return first(
        near(one, other, f"parameter {i}", relative, AFTER_STEPS * ABSOLUTE)
        for i, (one, other, relative) in enumerate(zip(got, right, tolerances, strict=True))
    )


def unchanged_before_launch(call: KernelCall) -> Finding | None:
    """Require that arguments have not changed when the first kernel begins."""
    text = "`{}` changes before the kernel begins: do all work in the kernel"
    memory = zip(call.arena.buffers, call.before, call.accesses.at_launch, strict=False)
    return first(
        unless(alike(before, at_launch), text.format(b.name)) for b, before, at_launch in memory
    )


def moved_once(call: KernelCall, *states: State) -> Finding | None:
    """Require that a kernel loads and stores each number once. Tables may be loaded again."""
    stored = [b for b in call.arena.buffers if not b.name.startswith("gradient")]
    right = sum(t.nbytes for state in states for t in (state.g, *state.changing))
    tables = 200 * (len(states) + call.launches[0].programs)
    return (
        unchanged_before_launch(call)
        or first(by_kernel(call, buffer.view, f"`{buffer.name}`") for buffer in stored)
        or loads_at_most(call, right, slack=0.1 * right + tables)
    )
