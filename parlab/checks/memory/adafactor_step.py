"""Exercise `adafactor_step`: the paper's Algorithms 4 and 5 in float64 are the reference."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, returns_nothing
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.unchanged import unchanged

RULES: dict[str, dict[str, Any]] = {  # what a mistake changes in `paper`
    "absolute_step": {"relative": False},
    "constant_rate": {"falling": False},
    "never_clipped": {"clip": math.inf},
    "norm_for_rms": {"norm": True},
}
MISTAKES = Mistakes(
    absolute_step=(
        "the step does not depend on the size of the parameter. Multiply it by max(ε₂, RMS(X))"
    ),
    constant_rate="the relative step size is always lr. It is min(lr, 1/√t) in step t",
    never_clipped=(
        "the update is not clipped, although its RMS is larger than d. Divide it by RMS(U)/d then"
    ),
    norm_for_rms=(
        "the update is clipped by its norm. Use its RMS, the norm over √(number of elements)"
    ),
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
    """A parameter's shape, the size of it and its gradient, the gradient's zeros, and settings."""

    shape: tuple[int, ...]
    size: float = 1.0
    zeros: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


MATRIX, VECTOR = (7, 5), (9,)
CASES = {
    "a matrix": Case(MATRIX),
    "a vector": Case(VECTOR),
    "a matrix whose gradient has zeros": Case(MATRIX, zeros=True),
    "a vector whose gradient has zeros": Case(VECTOR, zeros=True),
    "a matrix, lr = 0.75": Case((4, 9), settings={"lr": 0.75}),
    "a vector, lr = 0.75": Case(VECTOR, settings={"lr": 0.75}),
    "a matrix, clip = 0.25": Case(MATRIX, settings={"clip": 0.25}),
    "a matrix, clip = 2, ε₁ = 0.5, and ε₂ = 4": Case(
        MATRIX, settings={"clip": 2.0, "eps": (0.5, 4.0)}
    ),
    "a vector, ε₁ = 0.5": Case(VECTOR, settings={"eps": (0.5, 1e-3)}),
    "small numbers in a matrix": Case(MATRIX, size=1e-11),
    "a parameter of zeros": Case(VECTOR, size=0.0),
    "a matrix with one row": Case((1, 6)),
    "a matrix with one column": Case((6, 1)),
}


@check_of(MISTAKES, ranks=1)
def adafactor_step(check: Check) -> str:
    """Compare five steps with the paper's, alternating with another parameter. Count the states."""
    with check.trial() as trial, filled_with_nan():
        for _, case in trial.cases(CASES):
            start, gradients = drawn(trial.draw, case)
            function = partial(check.function, **case.settings)
            run = trial.run_function(Run, function, start, gradients)
            trial.require(
                lambda: returns_nothing(run.returned, "a change of `parameter` in place"),
                lambda: None if run.in_place else NOT_IN_PLACE,
                lambda: unchanged("`gradient`", run.gradients, gradients),
                lambda: small_state(run.state, case.shape),
                lambda: changes_are_right(torch.stack(run.changes), start, gradients, case),
            )
    return "the steps of the paper, with one number for each row and column of a matrix"


class Run:
    """The changes of a parameter in its steps, which alternate with another parameter's steps."""

    def __init__(self, function: Callable, start: Tensor, gradients: list[Tensor]) -> None:
        self.gradients, self.state, self.changes = [g.clone() for g in gradients], {}, []
        parameter, other, other_state = start.clone(), start.flip(0).contiguous(), {}
        place = parameter.data_ptr()
        for gradient in self.gradients:
            before = parameter.double()
            self.returned = function(parameter, gradient, self.state)
            self.changes.append(parameter.double() - before)
            function(other, gradient.flip(0) * 3, other_state)
        self.in_place = parameter.data_ptr() == place and not parameter.equal(start)


def drawn(draw: Random, case: Case) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    start = torch.randn(case.shape, generator=generator) * case.size
    sizes = (size * (case.size or 1) for size in SIZES)
    gradients = [torch.randn(case.shape, generator=generator) * size for size in sizes]
    if case.zeros:  # all in the first step, and then a row and a column
        gradients[0].zero_()
        for gradient in gradients:
            gradient[2], gradient[..., 1] = 0, 0
    return start, gradients


def paper(
    start: Tensor,
    gradients: list[Tensor],
    *,
    lr: float = 1e-2,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip: float = 1.0,
    relative: bool = True,
    falling: bool = True,
    norm: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the change of the parameter in each step, and its size α, in float64."""
    x, r, c = start.double(), torch.zeros(()), torch.zeros(())
    changes, alphas = [], []
    for t, gradient in enumerate(gradients, 1):
        g, new = gradient.double(), t**-0.8
        alpha = max(eps[1], rms(x) if relative else 1.0) * min(lr, t**-0.5 if falling else lr)
        square = g.square() + eps[0]
        if g.dim() == 1:
            r = v = (1 - new) * r + new * square
        else:
            r = (1 - new) * r + new * square.mean(1)
            c = (1 - new) * c + new * square.mean(0)
            v = r[:, None] * c / r.mean()
        u = g / v.sqrt()
        changes.append(-alpha * u / max(1.0, (u.norm().item() if norm else rms(u)) / clip))
        alphas.append(alpha)
        x = x + changes[-1]
    return torch.stack(changes), torch.tensor(alphas).view(-1, *[1] * start.dim())


def rms(x: Tensor) -> float:
    return x.norm().item() / x.numel() ** 0.5


def small_state(state: dict[str, Any], shape: tuple[int, ...]) -> Finding | None:
    """Require a count of steps, and no more numbers than the paper keeps."""
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and leaf.dim()]
    got, right = memory.tensor_bytes(tensors) // 4, sum(shape)
    if got > right:
        return MISTAKES.full_moment(shape=shape, got=got, right=right)
    if "step" not in state or int(state["step"]) != len(SIZES):
        return observed(f'after {len(SIZES)} steps, state["step"] is {state.get("step")}')
    return None


def changes_are_right(
    got: Tensor, start: Tensor, gradients: list[Tensor], case: Case
) -> Finding | None:
    """Compare the changes, divided by α, with the paper's, and with those of each mistake."""
    if got.isnan().any() and case.zeros:
        return MISTAKES.zero_moment()
    right, alpha = paper(start, gradients, **case.settings)
    wrong = (
        (key, paper(start, gradients, **(case.settings | change))[0] / alpha)
        for key, change in RULES.items()
    )
    name = "the change of `parameter` over α, by step,"
    return explained(got / alpha, right / alpha, wrong, MISTAKES, name, TOLERANCE)
