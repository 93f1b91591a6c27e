"""Exercise `adafactor_step`: the paper's Algorithms 4 and 5 in float64 are the reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type, same
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
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
        "the norm is used instead of the RMS. Divide it by the root of the number of elements",
    ),
    "eps_in_the_root": (
        {"eps_1": "root"},
        "ε₁ is added to the root of V, as in Adam. Add it to the squares of the gradient",
    ),
    "step_from_zero": (
        {"late": 1},
        "the running means use the step after this one, t + 1. In the first step, t is 1 and β is 0",
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
    underflow=(
        "parameter is NaN after this step, because a product or a square of small numbers is zero "
        "in float32. Divide r by its mean first, and multiply by the two roots one by one"
    ),
)
STEPS = 5
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
    "a matrix whose gradient has a row and a column of zeros": Case(MATRIX, zeros="some"),
    "a matrix whose gradient is zero in the first step": Case(MATRIX, zeros="first"),
    "a vector whose gradient is zero in the first step": Case(VECTOR, zeros="first"),
}


@dataclass
class Step:
    """What the function did in a step."""

    before: Tensor
    after: Tensor
    gradient: Tensor | None  # if the function changed it: as it was
    state: dict[str, Any]
    moved: bool  # to other memory
    returned: Any


@check_of(MISTAKES, ranks=1)
def adafactor_step(check: Check) -> str:
    """Compare five steps with the paper's, in turn with another parameter, and count the states."""
    with check.trial() as trial:
        for _, case in trial.cases(CASES):
            start, gradients = drawn(trial.draw, case)
            before = trial.situation
            steps = trial.run_function(lambda: taken(check.function, start, gradients, case))
            for number, step in enumerate(steps, 1):
                trial.situation = f"{before}, step {number}"
                trial.require(
                    lambda: kept_apart(step, gradients[number - 1]),
                    lambda: update_is_right(steps[:number], start, gradients, case),
                    lambda: small_state(step.state, number, case),
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
            given, before = gradient.clone(), parameter.clone()
            returned = function(parameter, given, state, **case.settings)
            changed = None if torch.equal(given, gradient) else given
            step = Step(before, parameter.clone(), changed, dict(state), False, returned)
            steps.append(step)
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
    in_root = mistake.get("eps_1") == "root"
    for t, gradient in enumerate(gradients, 1):
        g = gradient.double()
        new = (t + mistake.get("late", 0)) ** -0.8
        size = length(x, mistake) if mistake.get("relative", True) else 1.0
        alpha = max(eps[1], size) * min(lr, t**-0.5)
        square = g.square() + (0.0 if in_root else eps[0])
        if g.dim() == 1:
            r = v = (1 - new) * r + new * square
        else:
            r = (1 - new) * r + new * square.mean(1)
            c = (1 - new) * c + new * square.mean(0)
            v = r[:, None] * c / (r.mean() if mistake.get("divided", True) else 1.0)
        u = g / (v.sqrt() + (eps[0] if in_root else 0.0))
        over = length(u, mistake) / clip
        rule = mistake.get("clipped", "")
        u = u / {"never": 1.0, "always": over}.get(rule, max(1.0, over))
        x = x - alpha * u
        yield x, alpha


def length(x: Tensor, mistake: dict[str, Any]) -> float:
    return x.norm().item() / (1.0 if mistake.get("norm") else x.numel() ** 0.5)


def kept_apart(step: Step, gradient: Tensor) -> Finding | None:
    """Require an unchanged gradient, a change in place, and no result."""
    if step.gradient is not None:
        return unchanged("`gradient`", step.gradient, gradient)
    if step.returned is not None:
        got = f"a {type(step.returned).__name__}"
        return COMMON.returns_something(got=got, instead="a change of `parameter` in place")
    if torch.equal(step.before, step.after) and gradient.any():
        return observed("`parameter` is as before the step. Change it in place")
    return None


def update_is_right(
    steps: list[Step], start: Tensor, gradients: list[Tensor], case: Case
) -> Finding | None:
    """Compare the last step, over its size α, with the paper's, and with that of each mistake."""
    number, step = len(steps), steps[-1]
    if not step.after.isfinite().all():
        return (
            MISTAKES.underflow()
            if step.after.isnan().any() and case.zeros
            else observed("`parameter` has an infinity or NaN after this step")
        )
    path = [start.double(), *(x for x, _ in paper(start, gradients[:number], **case.settings))]
    alpha = list(paper(start, gradients[:number], **case.settings))[-1][1]
    got = (step.after.double() - step.before.double()) / alpha
    right = (path[-1] - path[-2]) / alpha
    if same(got, right, TOLERANCE):
        return None
    for key, (mistake, _) in RULES.items():
        wrong = [x for x, _ in paper(start, gradients[:number], **case.settings, **mistake)]
        moved = (wrong[-1] - (wrong[-2] if number > 1 else start.double())) / alpha
        if same(got, moved, TOLERANCE) and not same(moved, right, TOLERANCE):
            return getattr(MISTAKES, key)()
    return equal(got, right, "the change of `parameter`, over α,", TOLERANCE)


def small_state(state: dict[str, Any], number: int, case: Case) -> Finding | None:
    """Require the count of steps, and as many numbers as the paper keeps."""
    if "step" not in state:
        return observed('state["step"] is missing: keep the number of steps so far')
    if int(state["step"]) != number:
        return observed(f'state["step"] is {state["step"]}, expected {number}')
    tensors = {k: v for k, v in state.items() if k != "step"}
    for key, value in tensors.items():
        if found := has_type(value, Tensor | int | float, "a tensor", f"state[{key!r}]"):
            return found
    kept = memory.tensor_bytes(v for v in tensors.values() if isinstance(v, Tensor)) // 4
    right = sum(case.shape)
    if kept <= right:
        return None
    if len(case.shape) == 2:
        return MISTAKES.full_moment(shape=case.shape, got=kept, right=right)
    return observed(f"the state keeps {kept} numbers, expected {right}")
