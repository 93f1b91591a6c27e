"""Exercise `adafactor_step`: the paper's Algorithms 4 and 5 in float64 are the reference."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, returns_nothing, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.unchanged import unchanged

# What a mistake changes in `paper`, and its text.
RULES: dict[str, tuple[dict[str, Any], str]] = {
    "absolute_step": (
        {"relative": False},
        "the step does not depend on the size of the parameter. Multiply it by max(ε₂, RMS(X))",
    ),
    "never_clipped": (
        {"clip": math.inf},
        "the update is not clipped, although its RMS is larger than d. Divide it by RMS(U)/d then",
    ),
    "norm_for_rms": (
        {"norm": True},
        "the update is clipped by its norm. Use its RMS, the norm over √(number of elements)",
    ),
}
MISTAKES = Mistakes(
    **{key: text for key, (_, text) in RULES.items()},
    full_moment=(
        "for a parameter of shape {shape}, the state keeps {got} float32 numbers, expected "
        "{right}: one for each row and each column of a matrix, or for each element of a vector"
    ),
    zero_moment=(
        "`parameter` is NaN after a step: where the gradient is zero, its second moment is zero "
        "as well. Add ε₁ to the squares, and avoid products of small numbers, which are zero in "
        "float32: divide r by its mean first, and multiply by the two roots one by one"
    ),
)
NOT_IN_PLACE = observed("`parameter` has no new values in its memory. Change it in place")
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


@check_of(MISTAKES, ranks=1)
def adafactor_step(check: Check) -> str:
    """Compare five steps with the paper's, in turn with another parameter, and count the states."""
    with check.trial() as trial, filled_with_nan():
        for _, case in trial.cases(CASES):
            start, gradients = drawn(trial.draw, case)
            parameter, other = start.clone(), start.flip(0).contiguous()
            state: dict[str, Any] = {}
            other_state: dict[str, Any] = {}
            changes: list[Tensor] = []
            function, situation = partial(check.function, **case.settings), trial.situation
            for step, gradient in enumerate(gradients, 1):
                trial.situation = f"{situation}, step {step}"
                given, before, place = gradient.clone(), parameter.clone(), parameter.data_ptr()
                returned = trial.run_function(function, parameter, given, state)
                changes.append(change := parameter.double() - before.double())
                in_place = parameter.data_ptr() == place and (change.any() or not gradient.any())
                trial.require(
                    lambda: returns_nothing(returned, "a change of `parameter` in place"),
                    lambda: None if in_place else NOT_IN_PLACE,
                    lambda: unchanged("`gradient`", given, gradient),
                    lambda: small_state(state, step, case.shape),
                )
                trial.run_function(function, other, gradient.flip(0) * 3, other_state)
            trial.situation = situation
            trial.require(lambda: changes_are_right(changes, start, gradients, case))
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


def paper(
    start: Tensor,
    gradients: list[Tensor],
    *,
    lr: float = 1e-2,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip: float = 1.0,
    relative: bool = True,
    norm: bool = False,
) -> Iterator[tuple[Tensor, float]]:
    """Yield the change of the parameter in each step, and its size α, in float64."""
    x, r, c = start.double(), torch.zeros(()), torch.zeros(())
    for t, gradient in enumerate(gradients, 1):
        g, new = gradient.double(), t**-0.8
        alpha = max(eps[1], rms(x) if relative else 1.0) * min(lr, t**-0.5)
        square = g.square() + eps[0]
        if g.dim() == 1:
            r = v = (1 - new) * r + new * square
        else:
            r = (1 - new) * r + new * square.mean(1)
            c = (1 - new) * c + new * square.mean(0)
            v = r[:, None] * c / r.mean()
        u = g / v.sqrt()
        change = -alpha * u / max(1.0, (u.norm().item() if norm else rms(u)) / clip)
        x = x + change
        yield change, alpha


def rms(x: Tensor) -> float:
    return x.norm().item() / x.numel() ** 0.5


def small_state(state: dict[str, Any], step: int, shape: tuple[int, ...]) -> Finding | None:
    """Require the count of steps, and not more numbers than the paper keeps."""
    tensors = [value for value in state.values() if isinstance(value, Tensor) and value.dim()]
    got, right = memory.tensor_bytes(tensors) // 4, sum(shape)
    if got > right:
        return MISTAKES.full_moment(shape=shape, got=got, right=right)
    if "step" not in state or int(state["step"]) != step:
        return observed(f'state["step"] is {state.get("step")}, expected {step}, the steps so far')
    return None


def changes_are_right(
    got: list[Tensor], start: Tensor, gradients: list[Tensor], case: Case
) -> Finding | None:
    """Compare the changes over α with the paper's, and all of them with those of each mistake."""

    def over_alpha(changes: Iterable[Tensor]) -> list[Tensor]:
        return [change / alpha for change, (_, alpha) in zip(changes, paper_steps, strict=True)]

    paper_steps = list(paper(start, gradients, **case.settings))
    found, right = over_alpha(got), over_alpha(change for change, _ in paper_steps)
    wrong = [i for i, one in enumerate(found) if not same(one, right[i], TOLERANCE)]
    if not wrong:
        return None
    if found[wrong[0]].isnan().any() and case.zeros:
        return MISTAKES.zero_moment()
    for key, (mistake, _) in RULES.items():
        variant = paper(start, gradients, **(case.settings | mistake))
        others = over_alpha(change for change, _ in variant)
        if all(same(one, other, TOLERANCE) for one, other in zip(found, others, strict=True)):
            return getattr(MISTAKES, key)()
    name = f"in step {wrong[0] + 1}, the change of `parameter`, over α,"
    return equal(found[wrong[0]], right[wrong[0]], name, TOLERANCE)
