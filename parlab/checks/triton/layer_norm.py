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
    **_kernels.KERNEL.texts,
    **_kernels.MASKED.texts,
    padding_counted=(
        "masked elements count in the variance. They are 0, so x − mean is −mean there: set it to "
        "0 with `tl.where`"
    ),
    mean_of_block="the sum of a row is divided by the size of the block, not by the row's length",
    unbiased="the variance is divided by columns − 1. Divide by columns",
    eps_outside="ε is added to the standard deviation. Add it to the variance, inside the root",
    statistics_constant=(
        "the gradient of `x` treats mean and 1/σ as constants, but both depend on every element of "
        "the row. Subtract the two means over the row"
    ),
    weight_left_out="the gradient of `x` leaves out the weight: δ is weight · dy",
    normal_left_out="the gradient of `weight` is the sum of dy. Sum dy · x̃",
    sums_replaced=(
        "the partial sums have only the last row of each program. Add the terms of its other rows"
    ),
    races=(
        "several programs write {count} elements. Programs run at the same time and in any order, "
        "so terms are lost, or atomic additions round differently in each run. Let each program "
        "store its own row of partial sums"
    ),
    too_many_programs=(
        "the backward pass launches {got} programs. Each stores two rows of partial sums, so "
        "launch {right} at most, and let each handle several rows"
    ),
    gradient_strides=(
        "the gradient of the result is read in the order of memory, but it may have any strides. "
        "Use `dy.contiguous()`"
    ),
    normal_stored=(
        "the forward pass stores {got:,} bytes, expected {right:,}: the result, and two float32 "
        "numbers for each row. The backward pass can compute x̃ again"
    ),
    copied=(
        "the kernel does not load {count} of the {size} elements of {name}. Do not copy or convert "
        "it before the launch"
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
                    call, dtype, normed(*given, eps)[0], lambda: forward(call.result, given, eps)
                ),
                lambda: stores_little(call, x),
                lambda: loads_itself(call, x, "`x`"),
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
                lambda: loads_itself(back, x, "`x`"),
                lambda: loads_once(back, x, weight),
            )
    return "result and gradients as F.layer_norm's, a launch each; any length, three dtypes"


def normed(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, mistake: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """Return result, x̃, and 1/σ in float64, or what a mistake computes."""
    x, columns = x.double(), x.shape[1]
    block = 2 ** (columns - 1).bit_length()
    mean = x.sum(1, keepdim=True) / (block if mistake == "mean_of_block" else columns)
    squares = (x - mean).square().sum(1, keepdim=True)
    if mistake in ("padding_counted", "mean_of_block"):
        squares = squares + (block - columns) * mean.square()
    divisor = {"unbiased": columns - 1, "mean_of_block": block}.get(mistake, columns)
    outside = eps if mistake == "eps_outside" else 0.0
    rstd = 1 / ((squares / divisor + eps - outside).sqrt() + outside)
    normal = (x - mean) * rstd
    return normal * weight.double() + bias.double(), normal, rstd


def forward(got: Tensor, given: list[Tensor], eps: float) -> Finding | None:
    def compare(values: Tensor) -> Finding | None:
        name = "the result" + ", computed in float32 and rounded once," * (got.dtype in ROUNDED)
        # The larger the numbers, the less accurate is their mean in float32.
        absolute = 5e-5 + 1.5e-6 * float(given[0].abs().max())
        return _kernels.near(got, values, name, ROUNDED.get(got.dtype, 2e-5), absolute)

    keys = ("padding_counted", "mean_of_block", "unbiased", "eps_outside")
    variants = {key: normed(*given, eps, key)[0] for key in keys}
    return _kernels.explained(compare, normed(*given, eps)[0], variants, MISTAKES)


def gradients(given: list[Tensor], dy: Tensor, eps: float, mistake: str = "") -> tuple[Tensor, ...]:
    """Return the gradients of x, weight, and bias in float64, or what a mistake computes."""
    _, normal, rstd = normed(*given, eps)
    dy = dy.double()
    delta = dy if mistake == "weight_left_out" else dy * given[1].double()
    means = delta.mean(1, keepdim=True) + normal * (delta * normal).mean(1, keepdim=True)
    dx = rstd * (delta - (0 if mistake == "statistics_constant" else means))
    terms = dy if mistake == "normal_left_out" else dy * normal
    last = -PROGRAMS if mistake == "sums_replaced" else 0
    return dx, terms[last:].sum(0), dy[last:].sum(0)


def backward(call: KernelCall, given: list[Tensor], dy: Tensor, eps: float) -> Finding | None:
    right = gradients(given, dy, eps)
    if call.accesses.undefined and any(one.isnan().any() for one in call.result):
        return MISTAKES.undefined_numbers()

    def compare(values: tuple[Tensor, ...]) -> Finding | None:
        relative = ROUNDED.get(dy.dtype, 1e-4)
        return first(
            _kernels.near(got, value, f"the gradient of `{name}`", relative, 1e-3)
            for got, value, name in zip(call.result, values, NAMES, strict=True)
        )

    keys = ("statistics_constant", "weight_left_out", "normal_left_out", "sums_replaced")
    variants = {key: gradients(given, dy, eps, key) for key in keys}
    in_memory = dy.t().contiguous().view(dy.shape)
    variants["gradient_strides"] = gradients(given, in_memory, eps)
    return _kernels.explained(compare, right, variants, MISTAKES)


def stores_little(call: KernelCall, x: Tensor) -> Finding | None:
    got, right = call.accesses.stored, x.nbytes + 8 * len(x)
    return MISTAKES.normal_stored(got=got, right=right) if got > right else None


def loads_itself(call: KernelCall, tensor: Tensor, name: str) -> Finding | None:
    count = int((~call.accesses.loaded_from(tensor)).sum())
    if not call.accesses.known or not count:
        return None
    return MISTAKES.copied(count=count, size=tensor.numel(), name=name)


def loads_once(call: KernelCall, x: Tensor, weight: Tensor) -> Finding | None:
    """Require that x and dy are loaded once, and the weight once for each row or program."""
    times = max(len(x), call.launches[0].programs)
    return _kernels.loads_at_most(call, 2 * x.nbytes + 8 * len(x) + times * weight.nbytes)


def few_programs(call: KernelCall) -> Finding | None:
    got = call.launches[0].programs
    return MISTAKES.too_many_programs(got=got, right=PROGRAMS) if got > PROGRAMS else None


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
