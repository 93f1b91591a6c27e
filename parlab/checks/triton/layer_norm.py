"""Exercise `layer_norm`."""

from random import Random

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.triton import _kernels
from parlab.checks.triton._kernels import ROUNDED, KernelCall, first, numbers, unless
from parlab.kernels.buffers import Arena
from parlab.rank import device

PROGRAMS = 128
MISTAKES = Mistakes(
    padding_counted=(
        "masked elements count in the variance. They are 0, so x − mean is −mean there: set it to "
        "0 with `tl.where`"
    ),
    statistics_constant=(
        "the gradient of `x` treats mean and 1/σ as constants, but both depend on every element of "
        "the row. Subtract the two means over the row"
    ),
    races=(
        "several programs write {count} elements. Programs run at the same time and in any order, "
        "so terms are lost, or atomic additions round differently in each run. Let each program "
        "store its own row of partial sums"
    ),
    gradient_strides=(
        "the gradient of the result is read in the order of memory, but it may have any strides. "
        "Use `dy.contiguous()`"
    ),
    normal_stored=(
        "the forward pass stores {got:,} bytes, expected {right:,}: the result, and two float32 "
        "numbers for each row. The backward pass can compute x̃ again"
    ),
)
NAMES = ("x", "weight", "bias")
GRADIENT = "the gradient of the result"


def cases(draw: Random) -> dict[str, tuple]:
    """Return rows, columns, dtype, the mean of the numbers, and ε, by name."""
    table = [
        (3, 64, torch.float32, 0, 1e-5),
        (draw.randrange(4, 9), 33, torch.float32, 1, draw.uniform(0.2, 0.5)),
        (3, 1, torch.float32, 1, 0.1),
        (PROGRAMS + draw.randrange(20, 60), 5, torch.float32, 0, 1e-5),
        (3, draw.randrange(1100, 1500), torch.float32, 1, 1e-5),
        (4, draw.randrange(70, 120), torch.float32, 200, 1e-5),
        (5, draw.randrange(70, 120), torch.float16, 3, 1e-5),
        (5, draw.randrange(600, 700), torch.bfloat16, 1, 1e-5),
    ]
    return _kernels.named("{} × {}, {}, numbers around {}, ε = {:.1g}", table)


@check_of(MISTAKES, ranks=1)
def layer_norm(check: Check) -> str:
    """Check the result and its gradients, and what both kernels load and store."""
    with check.trial() as trial:
        for _, (rows, columns, dtype, around, eps) in trial.cases(cases(trial.draw)):
            given = [numbers(trial, rows, columns) + around, *numbers(trial, 2, columns)]
            given = [values.to(dtype) for values in given]
            dy = numbers(trial, rows, columns).to(dtype)
            arena = Arena(device)
            placed = [arena.place(*one).requires_grad_() for one in zip(NAMES, given, strict=True)]
            x, weight, _ = placed
            call = _kernels.run(trial, arena, *placed, eps)
            trial.require(
                lambda: _kernels.one_launch_inside(call, *NAMES),
                lambda: _kernels.result_is(
                    call, dtype, normed(*given, eps), lambda: forward(call.result, given, eps)
                ),
                lambda: stores_little(call, x),
                lambda: _kernels.loads_all(call, x, "`x`"),
                lambda: _kernels.loads_at_most(call, x.nbytes + 2 * rows * weight.nbytes),
            )
            y, placed_dy = call.result, arena.place(GRADIENT, dy, (1, rows))
            back = _kernels.run(
                trial, arena, function=lambda: torch.autograd.grad(y, placed, placed_dy)
            )
            trial.require(
                lambda: _kernels.one_launch_inside(back, *NAMES, GRADIENT),
                lambda: few_programs(back),
                lambda: no_races(back),
                lambda: backward(back, given, dy, eps),
                lambda: _kernels.by_kernel(back, back.result[0], "the gradient of `x`"),
                lambda: sums_in_kernel(back, x, weight),
                lambda: _kernels.loads_all(back, x, "`x`"),
                lambda: loads_once(back, x, weight),
            )
    return "result and gradients as F.layer_norm's, a launch each; any length, three dtypes"


def normed(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, padding: int = 0, constant: bool = False
) -> Tensor:
    """Compute the result in float64.

    Args:
        padding: how many zeros of each row count in the variance.
        constant: whether mean and variance are constants for autograd.
    """
    x = x.double()
    mean, variance = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
    if constant:
        mean, variance = mean.detach(), variance.detach()
    variance = variance + padding / x.shape[1] * mean.square()
    return (x - mean) / (variance + eps).sqrt() * weight.double() + bias.double()


def forward(got: Tensor, given: list[Tensor], eps: float) -> Finding | None:
    columns = given[0].shape[1]
    padding = 2 ** (columns - 1).bit_length() - columns
    variants = {"padding_counted": normed(*given, eps, padding)}
    # The larger the numbers, the less accurate is their mean in float32.
    absolute = 5e-5 + 1.5e-6 * float(given[0].abs().max())
    return _kernels.result_near(got, normed(*given, eps), 2e-5, variants, MISTAKES, absolute)


def gradients(
    given: list[Tensor], dy: Tensor, eps: float, constant: bool = False
) -> tuple[Tensor, ...]:
    leaves = [values.double().requires_grad_() for values in given]
    return torch.autograd.grad(normed(*leaves, eps, constant=constant), leaves, dy.double())


def backward(call: KernelCall, given: list[Tensor], dy: Tensor, eps: float) -> Finding | None:
    if call.accesses.undefined and any(one.isnan().any() for one in call.result):
        return _kernels.MASKED.undefined_numbers()

    def compare(values: tuple[Tensor, ...]) -> Finding | None:
        relative = ROUNDED.get(dy.dtype, 1e-4)
        return first(
            _kernels.near(got, value, f"the gradient of `{name}`", relative, 1e-3)
            for got, value, name in zip(call.result, values, NAMES, strict=True)
        )

    variants = {
        "statistics_constant": gradients(given, dy, eps, constant=True),
        "gradient_strides": gradients(given, dy.t().contiguous().view(dy.shape), eps),
    }
    return _kernels.explained(compare, gradients(given, dy, eps), variants, MISTAKES)


def stores_little(call: KernelCall, x: Tensor) -> Finding | None:
    got, right = call.accesses.stored, x.nbytes + 8 * len(x)
    return MISTAKES.normal_stored(got=got, right=right) if got > right else None


def loads_once(call: KernelCall, x: Tensor, weight: Tensor) -> Finding | None:
    """Require that x and dy are loaded once, and the weight once for each row or program."""
    times = max(len(x), call.launches[0].programs)
    return _kernels.loads_at_most(call, 2 * x.nbytes + 8 * len(x) + times * weight.nbytes)


def few_programs(call: KernelCall) -> Finding | None:
    got = call.launches[0].programs
    return unless(
        got <= PROGRAMS,
        f"the backward pass launches {got} programs. Each stores two rows of partial sums, so "
        f"launch {PROGRAMS} at most, and let each handle several rows",
    )


def no_races(call: KernelCall) -> Finding | None:
    count = call.accesses.stored_twice()
    return MISTAKES.races(count=count) if count else None


def sums_in_kernel(call: KernelCall, x: Tensor, weight: Tensor) -> Finding | None:
    got, right = call.accesses.stored, x.nbytes + 2 * 4 * weight.numel()
    return unless(
        got >= right or not call.accesses.known,
        f"the backward kernel stores {got:,} bytes, expected {right:,} or more: it must also add "
        "up the gradients of `weight` and `bias`, in float32",
    )
