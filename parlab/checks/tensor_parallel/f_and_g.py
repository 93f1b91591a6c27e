"""Exercise `f_and_g`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.tensor_parallel import requirements
from parlab.checks.tensor_parallel.layers import SECONDS, random
from parlab.checks.trial import Trial
from parlab.ledger import Call

MISTAKES = Mistakes(
    f_no_reduce_backward=(
        "f's backward gives this rank's gradient: every rank has used x, so the gradients of all "
        "have to be added"
    ),
    f_reduces_forward=(
        "f's forward sends: all ranks have the same x, and adding it up makes N of it"
    ),
    g_no_reduce_forward="g's forward gives this rank's part of the sum: the parts have to be added",
    g_reduces_backward=(
        "g's backward adds up the ranks' gradients: every rank has that of the whole output "
        "already, and gets {ranks} times as much"
    ),
    overwritten=(
        "g's result changes at the next call: what it returns belongs to the caller, so give each "
        "call memory of its own"
    ),
    averaged="{name} is the mean over the ranks where their sum is right",
    **requirements.texts("sends_more"),
)


@dataclass
class Seen:
    """What f, or g, did on this rank."""

    output: Tensor
    gradient: Tensor
    input_after: Tensor
    given_after: Tensor
    forward: list[Call]
    backward: list[Call]


@check_of(MISTAKES)
def f_and_g(check: Check) -> str:
    """Check values, gradients and calls of both; then finite differences through both."""
    for trial in check.trials():
        for shape, strided, dtype in [
            ((3, 5), False, torch.float64),
            ((4, 3, 2), True, torch.float64),
            ((7,), False, torch.float32),
            ((), False, torch.float64),
        ]:
            trial.situation = f"{trial.size} ranks, shape {shape}, {dtype}"
            _f(trial, shape, strided, dtype)
            _g(trial, shape, strided, dtype)
        trial.situation = f"{trial.size} ranks, called twice"
        both = trial.run_function(_twice, trial, random(trial.draw, 3), seconds=SECONDS)
        trial.require(lambda: None if same(*both) else MISTAKES.overwritten())
        trial.situation = f"{trial.size} ranks, finite differences"
        w = [random(trial.draw, 4) for _ in range(trial.size)][max(trial.rank, 0)]
        x = random(trial.draw, 4)
        error = trial.run_function(_gradcheck, trial, x, w, seconds=SECONDS)
        trial.require(lambda: evidence(f"g(f(x)·w): {error}") if error else None)
    return (
        "values, gradients and finite differences, for tensors in any order of memory, on 1 to "
        f"{check.world_size} ranks; f sends in the backward pass alone, g in the forward pass"
    )


def _strided(x: Tensor, strided: bool) -> Tensor:
    """The same numbers; in another order in memory, if asked for."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) if strided else x


def _seen(trial: Trial, which: int, x: Tensor, gradient: Tensor, strided: bool) -> Seen:
    """What f (0), or g (1), does with copies of these."""
    given = (_strided(one.clone(), strided) for one in (x, gradient))
    return trial.run_function(_run, trial, which, *given, seconds=SECONDS)


def _run(trial: Trial, which: int, x: Tensor, gradient: Tensor) -> Seen:
    function: Callable[[Tensor], Tensor] = trial.check.function(trial.group)[which]
    leaf = x.requires_grad_()
    given = leaf.view_as(leaf)
    start = len(trial.ledger.calls)
    output = function(given)
    middle = len(trial.ledger.calls)
    (of_x,) = torch.autograd.grad(output, leaf, grad_outputs=gradient)
    calls = trial.ledger.calls
    return Seen(
        output.detach().clone(),
        of_x.clone(),
        leaf.detach().clone(),
        gradient.clone(),
        calls[start:middle],
        calls[middle:],
    )


def _f(trial: Trial, shape: tuple[int, ...], strided: bool, dtype: torch.dtype) -> None:
    x = random(trial.draw, *shape).to(dtype)
    every = [random(trial.draw, *shape).to(dtype) for _ in range(trial.size)]
    mine = every[max(trial.rank, 0)]
    seen = _seen(trial, 0, x, mine, strided)
    total = torch.stack(every).sum(0)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    several = trial.size > 1

    def gradient() -> Finding | None:
        if several and same(seen.gradient, mine, tolerance):
            return MISTAKES.f_no_reduce_backward()
        if several and same(seen.gradient, total / trial.size, tolerance):
            return MISTAKES.averaged(name="the gradient that f gives back")
        return equal(seen.gradient, total, "the gradient that f gives back", tolerance)

    trial.require(
        lambda: None if same(seen.input_after, x) else COMMON.argument_changed(name="f's input"),
        lambda: MISTAKES.f_reduces_forward() if several and seen.forward else None,
        lambda: equal(seen.output, x, "f(x)"),
        lambda: (
            None
            if same(seen.given_after, mine)
            else COMMON.argument_changed(name="the gradient given to f's backward")
        ),
        gradient,
        lambda: requirements.sends(seen.backward, total.nbytes, trial.size, "backward"),
    )


def _g(trial: Trial, shape: tuple[int, ...], strided: bool, dtype: torch.dtype) -> None:
    every = [random(trial.draw, *shape).to(dtype) for _ in range(trial.size)]
    mine = every[max(trial.rank, 0)]
    gradient = random(trial.draw, *shape).to(dtype)
    seen = _seen(trial, 1, mine, gradient, strided)
    total = torch.stack(every).sum(0)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    several = trial.size > 1

    def output() -> Finding | None:
        if several and same(seen.output, mine, tolerance):
            return MISTAKES.g_no_reduce_forward()
        if several and same(seen.output, total / trial.size, tolerance):
            return MISTAKES.averaged(name="g(x)")
        return equal(seen.output, total, "g(x)", tolerance)

    def back() -> Finding | None:
        if several and same(seen.gradient, trial.size * gradient, tolerance):
            return MISTAKES.g_reduces_backward(ranks=trial.size)
        return equal(seen.gradient, gradient, "the gradient that g gives back", tolerance)

    trial.require(
        lambda: None if same(seen.input_after, mine) else COMMON.argument_changed(name="g's input"),
        output,
        lambda: requirements.sends(seen.forward, total.nbytes, trial.size, "forward"),
        lambda: (
            None
            if same(seen.given_after, gradient)
            else COMMON.argument_changed(name="the gradient given to g's backward")
        ),
        back,
        lambda: (
            evidence("g's backward sends: every rank has the gradient already")
            if several and seen.backward
            else None
        ),
    )


def _twice(trial: Trial, x: Tensor) -> tuple[Tensor, Tensor]:
    """g's result as it was returned, and after another call."""
    _, g = trial.check.function(trial.group)
    got = g(x)
    before = got.clone()
    g(x + 1)
    return got, before


def _gradcheck(trial: Trial, x: Tensor, w: Tensor) -> str:
    """What finite differences say against it, "" for nothing. All ranks move the same number."""
    f, g = trial.check.function(trial.group)
    try:
        torch.autograd.gradcheck(lambda x: g(torch.tanh(f(x) * w)), x.requires_grad_())
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return ""
