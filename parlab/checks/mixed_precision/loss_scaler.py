"""Exercise `loss_scaler`: the operator in torch.amp.GradScaler is the reference."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.mixed_precision._scaler import is_flag

LARGEST = torch.finfo(torch.float32).max
INF, NAN = math.inf, math.nan
SECONDS = 20.0

MISTAKES = Mistakes(
    counts_on_after_overflow=(
        "after step {step}, which overflowed, {got} good steps are counted, expected 0. Start "
        "again at 0: the steps must be in a row"
    ),
    grows_to_infinity=(
        "the scale becomes {got:g}, which is no float32 number, so every step overflows. If growth "
        "would exceed the largest float32 number, leave the scale unchanged"
    ),
    overflow_missed=(
        "unscale() returns {got!r}, but gradient {i} of 3 contains {value}. Check every gradient "
        "for both infinities and for NaN"
    ),
    not_in_place="the memory of gradient {i} is unchanged after unscale(). Divide all, in place",
)

OVERFLOWS = [0, 0, INF, INF, INF, 0, 0, 0, 0, 0, -INF, -INF, -INF, 0, 0, 0, NAN, NAN, NAN, 0, 0]

NAMES = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# The state at the start, and a number to put into the gradients of each step; 0 changes nothing.
Plan = tuple[tuple[float, float, float, int, int], list[float]]
PLANS: dict[str, Plan] = {
    "good steps, growth_interval=3": ((2.0**10, 2.0, 0.5, 3, 0), [0] * 9),
    "some overflow, growth_interval=4": ((2.0**13, 2.0, 0.5, 4, 0), OVERFLOWS),
    "growth after each good step": ((2.0**20, 2.0, 0.5, 1, 0), [0, INF, 0, 0, NAN]),
    "close to the largest float32": ((2.0**126, 2.0, 0.5, 1, 0), [0] * 4),
    "up to the largest float32": ((LARGEST / 2, 2.0, 0.5, 1, 0), [0] * 2),
    "overflow again and again": ((4.0, 2.0, 2.0**-16, 3, 0), [INF] * 6),
    "finite gradients with an infinite sum": ((1.0, 2.0, 0.5, 3, 0), [0.75 * LARGEST]),
    "a loaded state": ((32.0, 2.0, 0.5, 3, 2), [0, 0, INF, 0, 0, 0]),
}


def other_factors(draw: Random) -> Plan:
    drawn = [draw.choice([INF, -INF, NAN]) if draw.random() < 0.2 else 0.0 for _ in range(30)]
    return (2.0**8, 4.0, 0.125, 2, 0), drawn


@check_of(MISTAKES, ranks=1)
def loss_scaler(check: Check) -> str:
    """Compare with torch.amp.GradScaler, step by step, in sequences of good and bad steps."""
    with check.trial() as trial:
        plans = PLANS | {"other factors": other_factors(trial.draw)}
        for _, plan in trial.cases(plans):
            taken = trial.run_function(lambda: list(steps(check.function, *plan)), seconds=SECONDS)
            trial.require(
                lambda: next(filter(None, map(unscaled, taken)), None),
                lambda: updated(taken, *plan),
            )
    return "the same scales, skips and states as torch.amp.GradScaler, step by step"


@dataclass
class Step:
    """One step of the learner's scaler: gradient `i` of three contains `number`."""

    number: float
    i: int
    scaled: list[Tensor]
    unscaled: list[Tensor]
    overflow: Any
    states: list[dict[str, Any]]  # before unscale(), after it, and after update()


def steps(make: Any, settings: tuple, numbers: list[float]) -> Iterator[Step]:
    """Unscale and update in each step, and yield the step."""
    scaler = make(*settings[:4])
    if settings[4]:
        scaler = make()
        scaler.load_state_dict(dict(zip(NAMES, settings, strict=True)))
    for i, number in enumerate(numbers):
        generator = torch.Generator().manual_seed(i)
        scaled = [torch.randn(n, generator=generator) * 2.0**20 for n in (4, 1, 3)]
        if number:
            scaled[i % 3][-1:] = number
        if number and math.isfinite(number):
            scaled = [torch.full_like(gradient, number) for gradient in scaled]
        given = [gradient.clone() for gradient in scaled]
        memory, states = [g.detach() for g in given], [dict(scaler.state_dict())]
        overflow = scaler.unscale(given)
        states.append(dict(scaler.state_dict()))
        scaler.update(overflow)
        states.append(dict(scaler.state_dict()))
        yield Step(number, i % 3, scaled, memory, overflow, states)


def unscaled(step: Step) -> Finding | None:
    """Require that unscale() divides by the scale, and reports whether a gradient overflowed."""
    right, scale = not math.isfinite(step.number), step.states[0]["scale"]
    if right and step.overflow is not None and not step.overflow:
        return MISTAKES.overflow_missed(got=step.overflow, i=step.i, value=step.number)
    if found := is_flag(step.overflow, right, "unscale() returns"):
        return found
    if step.states[1] != step.states[0]:
        return observed("unscale() changes the scale or the count. Leave that to update()")
    for i, (got, scaled) in enumerate(zip(step.unscaled, step.scaled, strict=True)):
        wanted = scaled / scale
        wrong = ~torch.isclose(got, wanted, rtol=1e-6, atol=0.0, equal_nan=True)
        if wrong.any():
            if torch.equal(got.nan_to_num(), scaled.nan_to_num()):
                return MISTAKES.not_in_place(i=i)
            at = int(wrong.int().argmax())
            return observed(f"gradient {i} at index {at} is {got[at]:g}, expected {wanted[at]:g}")
    return None


def updated(taken: list[Step], settings: tuple, numbers: list[float]) -> Finding | None:
    """Compare the states after each step."""
    for i, (step, right) in enumerate(zip(taken, expected(settings, numbers), strict=True)):
        state = step.states[2]
        if state["scale"] > LARGEST:
            return MISTAKES.grows_to_infinity(got=state["scale"])
        for name, value in right.items():
            if (got := state.get(name)) == value:
                continue
            if name == "_growth_tracker" and not math.isfinite(step.number):
                return MISTAKES.counts_on_after_overflow(step=i + 1, got=got)
            shown = f"the state's {name!r} is {got!r}, expected {value!r}"
            return observed(f"after step {i + 1}, {shown}")
    return None


def expected(settings: tuple, numbers: list[float]) -> Iterator[dict[str, Any]]:
    """Yield the state after each step, from the operator that GradScaler.update() calls."""
    state = dict(zip(NAMES, settings, strict=True))
    scale, count = torch.tensor(settings[0]), torch.tensor(settings[4], dtype=torch.int32)
    for number in numbers:
        overflow = torch.tensor(float(not math.isfinite(number)))
        torch._amp_update_scale_(scale, count, overflow, *settings[1:4])
        yield state | {"scale": scale.item(), "_growth_tracker": count.item()}
