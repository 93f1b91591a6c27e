"""Exercise `loss_scaler`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence

LARGEST = torch.finfo(torch.float32).max
CLOSE = 1e-6  # relative: the library multiplies by a rounded reciprocal
SECONDS = 20.0

MISTAKES = Mistakes(
    never_grows=(
        "the scale never grows: after an overflow too many it stays low for good, and small "
        "gradients are lost. It grows after `growth_interval` good steps in a row"
    ),
    never_shrinks="the scale stays after an overflow: the next step overflows as well",
    grows_each_step="the scale grows after every good step: count to `growth_interval` first",
    counts_on_after_overflow=(
        "an overflow does not end the row of good steps: the count begins again at 0"
    ),
    counts_on_after_growth="the count goes on after the scale has grown: it begins again at 0",
    grows_a_step_late=("the scale grows one good step later than after `growth_interval` of them"),
    grows_a_step_early=(
        "the scale grows one good step earlier than after `growth_interval` of them"
    ),
    growth_factor_alone=(
        "after an overflow the scale is divided by `growth_factor`: it is multiplied by "
        "`backoff_factor`"
    ),
    factors_swapped="the scale grows after an overflow, and shrinks after good steps",
    factors_of_two=(
        "the scale doubles or halves, whatever `growth_factor` and `backoff_factor` say"
    ),
    grows_to_infinity=(
        "the scale grows to {got:g}, which a float32 cannot hold: with an infinite scale every "
        "step overflows, and half of infinity is infinity. It stays where it is"
    ),
    cut_to_the_largest=(
        "the scale becomes the largest float32, which is no power of two: where growing would make "
        "it larger than that it stays as it is"
    ),
    limited_above=(
        "the scale does not grow above {got:g}: the limit is the largest float32, since it is one"
    ),
    limited_below=(
        "the scale does not get below {got:g}: it may have to, where the loss itself is large"
    ),
    updated_in_unscale=(
        "unscale() changes the scale, or the count of good steps: that is what update() does, at "
        "the end of a step"
    ),
    finite_taken_for_overflow=(
        "unscale() says that something has overflowed where all numbers are finite, if large: it "
        "may be their sum or norm that has. Ask each number"
    ),
    overflow_hidden=(
        "unscale() has put a finite number in the place of an infinity or NaN: divided by the "
        "scale it stays one"
    ),
    nan_not_seen="unscale() does not see a NaN: it too says that something has overflowed",
    infinity_not_seen="unscale() does not see an infinity",
    minus_infinity_not_seen="unscale() does not see −∞: overflow has two ends",
    first_tensor_only="unscale() looks at one of the gradients only: overflow may be in any",
    not_in_place="the gradients are as before unscale(): divide them in place",
    multiplied="unscale() multiplies by the scale: it divides",
    rest_left_scaled=(
        "where something has overflowed, other gradients are left scaled: who logs them has "
        "numbers of another size"
    ),
)


@dataclass
class Plan:
    """How a scaler is made, and what its steps meet: 0 for good, else an infinity or a NaN."""

    settings: tuple[float, float, float, int]
    bad: list[float]
    large: bool = False  # two of the gradients' numbers together do not fit a float32


@check_of(MISTAKES)
def loss_scaler(check: Check) -> str:
    """Compare with torch.amp.GradScaler, step by step, in sequences of good and bad steps."""
    with check.trial() as trial:
        for name, plan in plans(trial.draw):
            right = library(plan)
            done = trial.run_function(_ours, check.function, plan, seconds=SECONDS)
            for number, step in enumerate(right):
                trial.situation = f"{name}, step {number + 1}"
                trial.require(lambda: unscaled(done[number], step, plan.bad[number]))
            trial.situation = f"{name}, growth_interval {plan.settings[3]}"
            trial.require(
                lambda: overflows(done, right, plan),
                lambda: updated_late(done),
                lambda: scale_of(done, right, plan),
                lambda: states(done, right),
            )
        trial.situation = "a state loaded from the library's scaler"
        got, right_after = trial.run_function(_resumed, check.function, seconds=SECONDS)
        trial.require(lambda: resumed(got, right_after))
    return "the same scales, skips and states as torch.amp.GradScaler, step by step"


@dataclass
class Step:
    gradients: list[Tensor]
    overflow: Any
    scale: float
    state: dict[str, Any]
    moved: bool = False  # into other memory
    updated: bool = False  # by unscale()


def plans(draw: Random) -> Iterator[tuple[str, Plan]]:
    bad = [math.inf, -math.inf, math.nan]
    none = [0.0] * 9
    yield "good steps", Plan((2.0**10, 2.0, 0.5, 3), none)
    mixed = [0.0] * 24
    for at, what in zip((2, 3, 6, 11, 17), [*bad, *draw.sample(bad, 2)], strict=True):
        mixed[at] = what
    yield "some overflow", Plan((2.0**13, 2.0, 0.5, 4), mixed)
    drawn = [draw.choice(bad) if draw.random() < 0.2 else 0.0 for _ in range(30)]
    yield "other factors", Plan((2.0**8, 4.0, 0.125, 2), drawn)
    yield "each good step", Plan((2.0**20, 2.0, 0.5, 1), [0.0, math.inf, 0.0, 0.0, math.nan])
    yield "close to the largest float32", Plan((2.0**126, 2.0, 0.5, 1), [0.0] * 4)
    yield "up to the largest float32", Plan((LARGEST / 2, 2.0, 0.5, 1), [0.0] * 2)
    yield "overflow again and again", Plan((4.0, 2.0, 2.0**-16, 3), [math.inf] * 6)
    yield "large numbers", Plan((1.0, 2.0, 0.5, 3), [0.0], large=True)


def gradients(scale: float, bad: float, number: int, large: bool) -> list[Tensor]:
    """Of three parameters, scaled; one number is `bad`, where that is not 0."""
    if large:
        return [torch.full((n,), 0.75 * LARGEST) for n in (4, 1, 3)]
    generator = torch.Generator().manual_seed(number)
    # Near the end of float32 the numbers are smaller by a power of two, whatever the scale.
    size = scale if scale <= 2.0**100 else min(scale, LARGEST) * 2.0**-30
    found = [torch.randn(n, generator=generator) * size for n in (4, 1, 3)]
    if bad:
        found[number % 3][-1] = bad
    return found


def _ours(make: Any, plan: Plan) -> list[Step]:
    scale, growth, backoff, interval = plan.settings
    scaler = make(scale, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    steps = []
    for number, bad in enumerate(plan.bad):
        given = gradients(float(scaler.scale), bad, number, plan.large)
        addresses = [g.data_ptr() for g in given]
        before = dict(scaler.state_dict())
        found = scaler.unscale(given)
        updated = dict(scaler.state_dict()) != before
        scaler.update(found)
        moved = [g.data_ptr() for g in given] != addresses
        steps.append(
            Step(given, found, float(scaler.scale), dict(scaler.state_dict()), moved, updated)
        )
    return steps


def library(plan: Plan) -> list[Step]:
    """The same steps of torch's own scaler."""
    scale, growth, backoff, interval = plan.settings
    scaler = torch.amp.GradScaler("cpu", scale, growth, backoff, interval)
    parameters = [nn.Parameter(torch.zeros(n)) for n in (4, 1, 3)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    steps = []
    for number, bad in enumerate(plan.bad):
        scaler.scale(torch.ones(()))  # it makes its state at the first loss
        for parameter, gradient in zip(
            parameters, gradients(scaler.get_scale(), bad, number, plan.large), strict=True
        ):
            parameter.grad = gradient
            parameter.data.zero_()
        scaler.unscale_(optimizer)
        unscaled = [p.grad.clone() for p in parameters]
        scaler.step(optimizer)
        skipped = not any(p.any() for p in parameters)
        scaler.update()
        steps.append(Step(unscaled, skipped, scaler.get_scale(), scaler.state_dict()))
    return steps


def unscaled(got: Step, right: Step, bad: float) -> Finding | None:
    pairs = list(zip(got.gradients, right.gradients, strict=True))
    if all(_alike(a, b) for a, b in pairs):
        if got.moved:
            return evidence(
                "after unscale() the gradients lie in other memory: divide in place, where others "
                "may hold views of them"
            )
        return None
    if any(bool((a.isfinite() & ~b.isfinite()).any()) for a, b in pairs):
        return MISTAKES.overflow_hidden()
    for i, (a, b) in enumerate(pairs):
        if _alike(a, b):
            continue
        scale = _ratio(a, b)
        if bad:
            return MISTAKES.rest_left_scaled()
        if scale > 1 and all(_alike(x, y * scale) for x, y in pairs):
            before = float(scale)
            # Left as they were, they are `scale` times what is right; multiplied, its square.
            step = float(right.state["scale"])
            return MISTAKES.multiplied() if before > 4 * step else MISTAKES.not_in_place()
        return equal(a, b, f"gradient {i} after unscale()", CLOSE)
    return None


def _alike(got: Tensor, right: Tensor) -> bool:
    finite = torch.isfinite(right)
    if not same(torch.isfinite(got), finite):
        return False
    a, b = got[finite], right[finite]
    return bool(((a - b).abs() <= CLOSE * b.abs()).all())


def _ratio(a: Tensor, b: Tensor) -> float:
    finite = torch.isfinite(a) & torch.isfinite(b)
    return float((a[finite] / b[finite])[0]) if finite.any() else math.nan


def overflows(done: list[Step], right: list[Step], plan: Plan) -> Finding | None:
    """Whether unscale() has seen each overflow, and no other."""
    bad, large = plan.bad, plan.large
    for step in done:
        if step.overflow is None:
            return COMMON.returns_none()
        if not isinstance(step.overflow, bool | Tensor) and step.overflow not in (0, 1):
            return evidence(f"unscale() returns {step.overflow!r}: True or False is asked for")
    seen = {i for i, step in enumerate(done) if step.overflow}
    there = {i for i, step in enumerate(right) if step.overflow}
    if seen - there:
        if large:
            return MISTAKES.finite_taken_for_overflow()
        first = min(seen - there)
        return evidence(
            f"unscale() returns {done[first].overflow!r} in step {first + 1}, where all numbers "
            "are finite: True is for an infinity or a NaN"
        )
    missed = there - seen
    if not missed:
        return None
    places = {i % 3 for i in seen}  # in which of the gradients it was
    if len(places) == 1 and not places & {i % 3 for i in missed}:
        return MISTAKES.first_tensor_only()
    if all(math.isnan(bad[i]) for i in missed):
        return MISTAKES.nan_not_seen()
    if all(bad[i] < 0 for i in missed):
        return MISTAKES.minus_infinity_not_seen()
    if any(bad[i] == math.inf for i in missed):
        return MISTAKES.infinity_not_seen()
    return evidence(f"unscale() does not see the {bad[min(missed)]} of step {min(missed) + 1}")


def updated_late(done: list[Step]) -> Finding | None:
    return MISTAKES.updated_in_unscale() if any(step.updated for step in done) else None


def ruled(
    bad: list[bool],
    settings: tuple[float, float, float, int],
    late: int = 0,
    reset_on_overflow: bool = True,
    reset_on_growth: bool = True,
    lowest: float = 0.0,
    largest: float = LARGEST,
) -> list[float]:
    """The scales after each step, by the rule or a wrong one."""
    scale, growth, backoff, interval = settings
    good, scales = 0, []
    for one in bad:
        if one:
            scale = max(scale * backoff, lowest)
            good = 0 if reset_on_overflow else good
        else:
            good += 1
            if good >= interval + late:
                scale = scale * growth if scale * growth <= largest else scale
                good = 0 if reset_on_growth else good
        scales.append(scale)
    return scales


def scale_of(done: list[Step], right: list[Step], plan: Plan) -> Finding | None:
    got = [step.scale for step in done]
    if _equal_scales(got, [step.scale for step in right]):
        return None
    bad, settings = [bool(one) for one in plan.bad], plan.settings
    scale, growth, backoff, interval = settings
    far = [x for x in got if x > LARGEST]
    if far:
        return MISTAKES.grows_to_infinity(got=far[0])
    wrong: list[tuple[list[float], Finding]] = [
        (ruled(bad, (scale, growth, 1.0, interval)), MISTAKES.never_shrinks()),
        (ruled(bad, (scale, growth, backoff, 1)), MISTAKES.grows_each_step()),
        (ruled(bad, settings, late=1), MISTAKES.grows_a_step_late()),
        (ruled(bad, settings, late=-1), MISTAKES.grows_a_step_early()),
        (ruled(bad, settings, reset_on_overflow=False), MISTAKES.counts_on_after_overflow()),
        (ruled(bad, settings, reset_on_growth=False), MISTAKES.counts_on_after_growth()),
        (ruled(bad, (scale, backoff, growth, interval)), MISTAKES.factors_swapped()),
        (ruled(bad, (scale, growth, 1 / growth, interval)), MISTAKES.growth_factor_alone()),
        (ruled(bad, (scale, 2.0, 0.5, interval)), MISTAKES.factors_of_two()),
    ]
    if LARGEST in got and LARGEST not in [step.scale for step in right]:
        return MISTAKES.cut_to_the_largest()
    # The first plan stays below 2¹⁶: what grows there, and not here, has the limit of a half.
    if scale <= 2.0**10:
        wrong.append((ruled(bad, (scale, 1.0, backoff, interval)), MISTAKES.never_grows()))
    if scale <= 2.0**20:
        limited = ruled(bad, settings, largest=65504.0)
        wrong.append((limited, MISTAKES.limited_above(got=65504.0)))
    lowest = min(got)
    if lowest > min(step.scale for step in right):
        wrong.append((ruled(bad, settings, lowest=lowest), MISTAKES.limited_below(got=lowest)))
    for scales, finding in wrong:
        if _equal_scales(got, scales):
            return finding
    for number, step in enumerate(done):
        if bad[number] and (count := step.state.get("_growth_tracker")):
            return evidence(
                f"after step {number + 1}, which has overflowed, the count of good steps is "
                f"{count!r}: it begins again at 0"
            )
    at = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if a != b.scale)
    return evidence(
        f"after step {at + 1} the scale is {got[at]:g} where {right[at].scale:g} is right"
    )


def _equal_scales(got: list[float], right: list[float]) -> bool:
    return all(abs(a - b) <= CLOSE * b for a, b in zip(got, right, strict=True))


def states(done: list[Step], right: list[Step]) -> Finding | None:
    for number, (got, wanted) in enumerate(zip(done, right, strict=True)):
        if got.state != wanted.state:
            key = next(k for k in wanted.state if got.state.get(k) != wanted.state[k])
            return evidence(
                f"after step {number + 1} the state's {key!r} is {got.state.get(key)!r} where "
                f"{wanted.state[key]!r} is right: it goes on from there when training is resumed"
            )
    return None


def _resumed(make: Any) -> tuple[list[float], list[float]]:
    """Scales of ours after it has loaded what the library's has saved, and the library's own."""
    saved = {
        "scale": 2.0**5,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 3,
        "_growth_tracker": 2,
    }
    scaler, got = make(), []
    scaler.load_state_dict(saved)
    bad = [False, False, True, False, False, False]
    for one in bad:
        scaler.update(one)
        got.append(float(scaler.scale))
    return got, [2.0**6, 2.0**6, 2.0**5, 2.0**5, 2.0**5, 2.0**6]


def resumed(got: list[float], right: list[float]) -> Finding | None:
    if got == right:
        return None
    return evidence(f"the scales go on as {got} where {right} are right")
