"""Exercise `adafactor_step`: the paper's Algorithms 4 and 5 in float64 are the reference."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.unchanged import unchanged

# What a mistake changes in `Rule`, and what it says.
RULES: dict[str, tuple[dict[str, Any], str]] = {
    "absolute_step": (
        {"relative": False},
        "the step does not depend on the size of the parameter. Multiply it by max(ε₂, RMS(X))",
    ),
    "never_clipped": (
        {"clipped": "never"},
        "the update is not clipped, although its RMS is larger than d. Divide it by RMS(U)/d then",
    ),
    "always_clipped": (
        {"clipped": "always"},
        "the update has an RMS of d in each step. Divide it by RMS(U)/d only if that exceeds 1",
    ),
    "norm_for_rms": (
        {"norm": True},
        "the update is clipped by its norm. Use its RMS, the norm over √(number of elements)",
    ),
    "step_from_zero": (
        {"late": 1},
        "the running means use t + 1 instead of t. In the first step, t is 1, and β is 0",
    ),
    "not_divided": (
        {"divided": False},
        "the estimate of the second moment is r·c. Divide it by the mean of r",
    ),
}
MISTAKES = Mistakes(
    **{key: text for key, (_, text) in RULES.items()},
    full_moment=(
        "for a matrix of shape {shape}, the state keeps {got} numbers, expected {right}. Keep one "
        "for each row and one for each column"
    ),
    zero_moment=(
        "`parameter` is NaN after this step: where the gradient is zero, its second moment is zero "
        "as well. Add ε₁ to the squares, and avoid products of small numbers, which are zero in "
        "float32: divide r by its mean first, and multiply by the two roots one by one"
    ),
)
TOLERANCE = 1e-3  # of the update, which has an RMS of about 1
SIZES = (1.0, 0.1, 30.0, 4.0, 0.3)  # of the gradient in each step: the third is clipped


@dataclass(frozen=True)
class Case:
    """A parameter's shape and size, the gradient's zeros, and settings of the function."""

    shape: tuple[int, ...]
    size: float = 1.0
    zeros: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


MATRIX, VECTOR = (7, 5), (9,)
CASES = {
    "a matrix": Case(MATRIX),
    "a vector": Case(VECTOR),
    "a matrix whose gradient has a row and a column of zeros": Case(MATRIX, zeros="some"),
    "a matrix whose gradient is zero in the first step": Case(MATRIX, zeros="first"),
    "a vector whose gradient is zero in the first step": Case(VECTOR, zeros="first"),
    "a matrix, lr = 0.75": Case((4, 9), settings={"lr": 0.75}),
    "a vector, lr = 0.75": Case(VECTOR, settings={"lr": 0.75}),
    "a matrix, clip = 0.25": Case(MATRIX, settings={"clip": 0.25}),
    "a matrix, clip = 2, ε₁ = 0.5, and ε₂ = 4": Case(
        MATRIX, settings={"clip": 2.0, "eps": (0.5, 4.0)}
    ),
    "a vector, ε₁ = 0.5": Case(VECTOR, settings={"eps": (0.5, 1e-3)}),
    "small numbers in a matrix": Case(MATRIX, size=1e-5),
    "a parameter of zeros": Case(VECTOR, size=0.0),
    "a matrix with one row": Case((1, 6)),
    "a matrix with one column": Case((6, 1)),
}


@dataclass
class Step:
    """What the function did in a step."""

    before: Tensor
    after: Tensor
    gradient: Tensor  # after the step
    kept: int  # numbers in the state, in float32
    count: int | None  # in the state
    moved: bool  # to other memory
    returned: Any


@check_of(MISTAKES, ranks=1)
def adafactor_step(check: Check) -> str:
    """Compare five steps with the paper's, in turn with another parameter, and count the states."""
    with check.trial() as trial, filled_with_nan():
        for _, case in trial.cases(CASES):
            start, gradients = drawn(trial.draw, case)
            before = trial.situation
            steps = trial.run_function(lambda: taken(check.function, start, gradients, case))
            for number, step in enumerate(steps, 1):
                trial.situation = f"{before}, step {number}"
                trial.require(
                    lambda: kept_apart(step, gradients[number - 1]),
                    lambda: small_state(step, number, case),
                    lambda: update_is_right(steps, number, start, gradients, case),
                )
    return "the steps of the paper, with one number for each row and column of a matrix"


def drawn(draw: Random, case: Case) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    start = torch.randn(case.shape, generator=generator) * case.size
    gradients = [torch.randn(case.shape, generator=generator) * size for size in SIZES]
    for number, gradient in enumerate(gradients):
        if case.zeros == "some":
            gradient[2], gradient[:, 1] = 0, 0
        if case.zeros == "first" and number == 0:
            gradient.zero_()
    return start, gradients


def taken(function: Callable, start: Tensor, gradients: list[Tensor], case: Case) -> list[Step]:
    """Take the steps, each followed by one of another parameter of the same shape."""
    parameter, other = start.clone(), start.flip(0).contiguous()
    state: dict[str, Any] = {}
    other_state: dict[str, Any] = {}
    steps = []
    with torch.no_grad():
        for gradient in gradients:
            given, before, place = gradient.clone(), parameter.clone(), parameter.data_ptr()
            returned = function(parameter, given, state, **case.settings)
            moved = parameter.data_ptr() != place
            after = parameter.clone()
            tensors = [v for v in state.values() if isinstance(v, Tensor) and v.dim()]
            kept, count = memory.tensor_bytes(tensors) // 4, state.get("step")
            count = None if count is None else int(count)
            steps.append(Step(before, after, given, kept, count, moved, returned))
            function(other, gradient.flip(0) * 3, other_state, **case.settings)
    return steps


def paper(
    start: Tensor,
    gradients: list[Tensor],
    *,
    lr: float = 1e-2,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip: float = 1.0,
    **mistake: Any,
) -> Iterator[tuple[Tensor, float]]:
    """Yield the parameter after each step, and its size α, in float64."""
    x, r, c = start.double(), torch.zeros(()), torch.zeros(())
    for t, gradient in enumerate(gradients, 1):
        g = gradient.double()
        new = (t + mistake.get("late", 0)) ** -0.8
        size = rms(x) if mistake.get("relative", True) else 1.0
        alpha = max(eps[1], size) * min(lr, t**-0.5)
        square = g.square() + eps[0]
        if g.dim() == 1:
            r = v = (1 - new) * r + new * square
        else:
            r = (1 - new) * r + new * square.mean(1)
            c = (1 - new) * c + new * square.mean(0)
            v = r[:, None] * c / (r.mean() if mistake.get("divided", True) else 1.0)
        u = g / v.sqrt()
        over = (u.norm().item() if mistake.get("norm") else rms(u)) / clip
        rule = mistake.get("clipped", "")
        u = u / {"never": 1.0, "always": over}.get(rule, max(1.0, over))
        x = x - alpha * u
        yield x, alpha


def rms(x: Tensor) -> float:
    return x.norm().item() / x.numel() ** 0.5


def kept_apart(step: Step, gradient: Tensor) -> Finding | None:
    """Require an unchanged gradient, a change in place, and no result."""
    if step.returned is not None:
        got = f"a {type(step.returned).__name__}"
        return COMMON.returns_something(got=got, instead="a change of `parameter` in place")
    if step.moved or (torch.equal(step.before, step.after) and gradient.any()):
        return observed("`parameter` has no new values in its memory. Change it in place")
    return unchanged("`gradient`", step.gradient, gradient)


def small_state(step: Step, number: int, case: Case) -> Finding | None:
    """Require the count of steps, and not many more numbers than the paper keeps."""
    right = sum(case.shape)
    if step.kept > right:
        if len(case.shape) == 2 and step.kept >= math.prod(case.shape):
            return MISTAKES.full_moment(shape=case.shape, got=step.kept, right=right)
        return observed(f"the state keeps {step.kept} float32 numbers, expected {right}")
    if step.count != number:
        return observed(f'state["step"] is {step.count}, expected {number}, the steps so far')
    return None


def update_is_right(
    steps: list[Step], number: int, start: Tensor, gradients: list[Tensor], case: Case
) -> Finding | None:
    """Compare a step's change over α with the paper's, and all steps with those of each mistake."""
    right, alphas = changes(start, gradients, case)
    if steps[number - 1].after.isnan().any() and case.zeros:
        return MISTAKES.zero_moment()
    pairs = zip(steps, alphas, strict=True)
    got = [(step.after.double() - step.before.double()) / alpha for step, alpha in pairs]
    if same(got[number - 1], right[number - 1], TOLERANCE):
        return None
    for key, (mistake, _) in RULES.items():
        wrong, others = changes(start, gradients, case, **mistake)
        moved = [w * other / alpha for w, other, alpha in zip(wrong, others, alphas, strict=True)]
        if all(same(g, w, TOLERANCE) for g, w in zip(got, moved, strict=True)):
            return getattr(MISTAKES, key)()
    return equal(
        got[number - 1], right[number - 1], "the change of `parameter`, over α,", TOLERANCE
    )


def changes(
    start: Tensor, gradients: list[Tensor], case: Case, **mistake: Any
) -> tuple[list[Tensor], list[float]]:
    """Return the change over α in each step, and α."""
    points, alphas = zip(*paper(start, gradients, **case.settings, **mistake), strict=True)
    before = [start.double(), *points[:-1]]
    moves = zip(points, before, alphas, strict=True)
    return [(x - old) / alpha for x, old, alpha in moves], list(alphas)
