"""Exercise `loss_scaler`: the operator in torch.amp.GradScaler is the reference."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
    never_grows=(
        "the scale never grows, so small gradients are lost after a few overflows. Multiply it by "
        "`growth_factor` after `growth_interval` good steps in a row"
    ),
    never_shrinks="the scale does not shrink after an overflow, so the next step overflows too",
    grows_each_step="the scale grows after every good step. Wait for `growth_interval` of them",
    grows_a_step_late="the scale grows one good step later than after `growth_interval` of them",
    counts_on_after_overflow=(
        "the count of good steps continues after an overflow. Set it to 0: the steps must be in a "
        "row"
    ),
    grows_to_infinity=(
        "the scale becomes {got:g}, which is no float32 number, so every step overflows. If growth "
        "would exceed the largest float32 number, leave the scale unchanged"
    ),
    overflow_missed=(
        "unscale() returns {got!r}, but gradient {i} of 3 contains {value}. Check every gradient "
        "for both infinities and for NaN"
    ),
    not_in_place="the gradients are unchanged after unscale(). Divide them in place",
)

# Mistakes that show in the scales, as changed arguments of `expected`, in the order of the search.
RULES: dict[str, dict[str, Any]] = {
    "never_shrinks": {"backoff": 1.0},
    "never_grows": {"growth": 1.0},
    "grows_each_step": {"interval": 1},
    "grows_a_step_late": {"late": 1},
    "counts_on_after_overflow": {"resets": False},
}

OVERFLOWS = [0, 0, INF, INF, INF, 0, 0, 0, 0, 0, -INF, -INF, -INF, 0, 0, 0, NAN, NAN, NAN, 0, 0]


@dataclass(frozen=True)
class Plan:
    """Settings of a scaler, and for each step a number in its gradients; 0: leave them."""

    scale: float
    growth: float
    backoff: float
    interval: int
    numbers: list[float]
    good_steps: int = 0  # in the state that is loaded at the start

    @property
    def state(self) -> dict[str, float | int]:
        """A scaler's state at the start."""
        return {
            "scale": self.scale,
            "growth_factor": self.growth,
            "backoff_factor": self.backoff,
            "growth_interval": self.interval,
            "_growth_tracker": self.good_steps,
        }


def plans(draw: Random) -> dict[str, Plan]:
    """List sequences of steps by name."""
    drawn = [draw.choice([INF, -INF, NAN]) if draw.random() < 0.2 else 0.0 for _ in range(30)]
    return {
        "good steps": Plan(2.0**10, 2.0, 0.5, 3, [0] * 9),
        "some overflow": Plan(2.0**13, 2.0, 0.5, 4, OVERFLOWS),
        "other factors": Plan(2.0**8, 4.0, 0.125, 2, drawn),
        "growth after each good step": Plan(2.0**20, 2.0, 0.5, 1, [0, INF, 0, 0, NAN]),
        "close to the largest float32": Plan(2.0**126, 2.0, 0.5, 1, [0] * 4),
        "up to the largest float32": Plan(LARGEST / 2, 2.0, 0.5, 1, [0] * 2),
        "overflow again and again": Plan(4.0, 2.0, 2.0**-16, 3, [INF] * 6),
        "finite gradients with an infinite sum": Plan(1.0, 2.0, 0.5, 3, [0.75 * LARGEST]),
        "a loaded state": Plan(32.0, 2.0, 0.5, 3, [0, 0, INF, 0, 0, 0], good_steps=2),
    }


@check_of(MISTAKES, ranks=1)
def loss_scaler(check: Check) -> str:
    """Compare with torch.amp.GradScaler, step by step, in sequences of good and bad steps."""
    candidates = list(RULES)  # mistakes that the plans so far do not exclude
    with check.trial() as trial:
        for _, plan in trial.cases(plans(trial.draw)):
            right = list(expected(plan))
            taken = trial.run_function(lambda: list(steps(check.function, plan)), seconds=SECONDS)
            trial.require(
                lambda: next(filter(None, map(unscaled, taken)), None),
                lambda: states([step.state for step in taken], right, plan, candidates),
            )
            candidates = [key for key in candidates if list(expected(plan, **RULES[key])) == right]
    return "the same scales, skips and states as torch.amp.GradScaler, step by step"


def expected(
    plan: Plan, late: int = 0, resets: bool = True, **changed: Any
) -> Iterator[dict[str, Any]]:
    """Yield the state after each step, by the operator that GradScaler.update() calls."""
    used = replace(plan, **changed)
    scale, count = torch.tensor(plan.scale), torch.tensor(plan.good_steps, dtype=torch.int32)
    for number in plan.numbers:
        before, overflow = count.clone(), torch.tensor(float(not math.isfinite(number)))
        torch._amp_update_scale_(
            scale, count, overflow, used.growth, used.backoff, used.interval + late
        )
        if overflow and not resets:
            count.copy_(before)
        yield plan.state | {"scale": scale.item(), "_growth_tracker": count.item()}


@dataclass
class Step:
    """One step of the learner's scaler: gradient `i` of three contains `number`."""

    number: float
    i: int
    scaled: list[Tensor]
    scale: float  # at the start
    unscaled: list[Tensor]
    overflow: Any
    in_place: bool
    unchanged: bool  # the state, by unscale()
    state: dict[str, Any]  # at the end


def steps(make: Any, plan: Plan) -> Iterator[Step]:
    """Unscale and update, step by step."""
    scaler = make(plan.scale, plan.growth, plan.backoff, plan.interval)
    if plan.good_steps:
        scaler = make()
        scaler.load_state_dict(plan.state)
    for i, number in enumerate(plan.numbers):
        generator = torch.Generator().manual_seed(i)
        scaled = [torch.randn(n, generator=generator) * 2.0**20 for n in (4, 1, 3)]
        if number:
            scaled[i % 3][-1:] = number
        if number and math.isfinite(number):
            scaled = [torch.full_like(gradient, number) for gradient in scaled]
        given = [gradient.clone() for gradient in scaled]
        places, before = [g.data_ptr() for g in given], dict(scaler.state_dict())
        overflow = scaler.unscale(given)
        in_place = [g.data_ptr() for g in given] == places
        unchanged = dict(scaler.state_dict()) == before
        scaler.update(overflow)
        state, scale = dict(scaler.state_dict()), float(before["scale"])
        yield Step(number, i % 3, scaled, scale, given, overflow, in_place, unchanged, state)


def unscaled(step: Step) -> Finding | None:
    """Require that unscale() divides by the scale, and returns whether there is an overflow."""
    right = not math.isfinite(step.number)
    if right and step.overflow is not None and not step.overflow:
        return MISTAKES.overflow_missed(got=step.overflow, i=step.i, value=step.number)
    if found := is_flag(step.overflow, right, "unscale() returns"):
        return found
    if not step.unchanged:
        return observed("unscale() changes the scale or the count. Leave that to update()")
    if not step.in_place:
        return observed("unscale() moves the gradients to other memory. Divide them in place")
    pairs = list(zip(step.unscaled, step.scaled, strict=True))
    if step.scale != 1 and all(
        torch.equal(got.nan_to_num(), scaled.nan_to_num()) for got, scaled in pairs
    ):
        return MISTAKES.not_in_place()
    for i, (got, scaled) in enumerate(pairs):
        wanted = scaled / step.scale
        wrong = ~torch.isclose(got, wanted, rtol=1e-6, atol=0.0, equal_nan=True)
        if wrong.any():
            at = int(wrong.int().argmax())
            return observed(f"gradient {i} at index {at} is {got[at]:g}, expected {wanted[at]:g}")
    return None


def states(
    got: list[dict[str, Any]], right: list[dict[str, Any]], plan: Plan, candidates: list[str]
) -> Finding | None:
    """Compare the states after each step; name a mistake that gives the same scales."""
    found = scales(got)
    if max(found) > LARGEST:
        return MISTAKES.grows_to_infinity(got=max(found))
    for key in candidates if found != scales(right) else ():
        if found == scales(expected(plan, **RULES[key])):
            return getattr(MISTAKES, key)()
    for i, (state, wanted) in enumerate(zip(got, right, strict=True)):
        for name, value in wanted.items():
            if state.get(name) != value:
                return observed(
                    f"after step {i + 1}, the state's {name!r} is {state.get(name)!r}, expected "
                    f"{value!r}"
                )
    return None


def scales(states: Iterable[dict[str, Any]]) -> list[float]:
    return [state["scale"] for state in states]
