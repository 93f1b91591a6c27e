"""Exercise `softmax`."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.triton import _kernels
from parlab.checks.triton._kernels import KernelCall, result_is
from parlab.checks.triton._new_results import require_new_results
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    **_kernels.MASKED.texts,
    row_stride=(
        "the rows of `x` are {stride} elements apart, but the kernel looks for them elsewhere. "
        "Row i begins at i · x.stride(0)"
    ),
    no_max=(
        "the result is not finite if `x` has large numbers, because e⁸⁹ is too large for a "
        "float32. First subtract the row's maximum"
    ),
    padding_counted=(
        "masked elements of a block count as elements of the row. Load them as −∞ with `other=`, "
        "which changes neither the maximum nor the sum"
    ),
)
# Below any number that a function may use as −∞. Float32 has gaps of 2⁻⁵ there, to which an
# exponent such as x − (maximum + log of the sum) is rounded.
FAR, FAR_TOLERANCE = -300_000, 2 * 2.0**-5
LOWEST = -3e38  # close to the lowest float32


def rows(trial: Trial, count: int, columns: int, around: float = 0) -> Tensor:
    x = _kernels.numbers(trial, count, columns) * 4 + around
    if columns > 40:
        x[0, 3:7] = -torch.inf
    return x


def cases(trial: Trial) -> dict[str, tuple[Tensor, int]]:
    """Return matrices, and the distances between their rows."""
    draw, width = trial.draw, trial.draw.randrange(65, 127)
    lowest = torch.full((2, width), LOWEST)
    lowest[:, 9] /= 3
    return {
        "64 columns": (rows(trial, 5, 64), 64),
        "33 columns": (rows(trial, draw.randrange(3, 9), 33, -3), 33),
        "1 column": (rows(trial, 3, 1), 1),
        "150 rows": (rows(trial, 150, 5), 5),
        "rows with gaps": (rows(trial, 4, width), width + draw.randrange(1, 60)),
        "numbers around 300": (rows(trial, 3, width, 300), width),
        "numbers around −400": (rows(trial, 3, width, -400), width),
        "numbers around −300,000": (rows(trial, 3, width, FAR), width),
        "numbers close to the lowest float32": (lowest, width),
        "long rows": (rows(trial, 2, draw.randrange(17_000, 20_000)), 20_000),
        "float16": (rows(trial, 4, width, 5).half(), width),
        "bfloat16 rows with gaps": (rows(trial, 4, width, 5).bfloat16(), width + 3),
    }


@check_of(MISTAKES, ranks=1)
def softmax(check: Check) -> str:
    """Check rows of many lengths, near and far apart, large and small, in three dtypes."""
    with check.trial() as trial:
        for _, (before, stride) in trial.cases(cases(trial)):
            arena = Arena(device)
            x = arena.place("x", before, (stride, 1))
            call = _kernels.run(trial, arena, x)
            right = before.double().softmax(1)
            trial.require(
                lambda: finds_rows(call, x),
                lambda: _kernels.one_launch_inside(call, "x"),
                lambda: result_is(call, x.dtype, right, lambda: values(call.result, before, right)),
                lambda: _kernels.loads_all(call, x, "`x`"),
                lambda: _kernels.loads_at_most(call, x.numel() * x.element_size()),
            )
        require_new_results(trial, rows(trial, 3, 33))
    return "one launch, each number loaded and stored once; any stride, size and dtype"


def finds_rows(call: KernelCall, x: Tensor) -> Finding | None:
    """Require that a kernel loads only elements of `x`, also if its rows have gaps."""
    outside = call.accesses.outside
    if outside is None or outside.stores or outside.buffer != "x" or x.is_contiguous():
        return None
    return MISTAKES.row_stride(stride=x.stride(0))


def values(got: Tensor, x: Tensor, right: Tensor) -> Finding | None:
    finite = x[x.isfinite()]
    if finite.max() > 80 and not got.isfinite().all():
        return MISTAKES.no_max()
    is_far = 2 * FAR < finite.mean() < FAR / 2
    columns = x.shape[1]
    padding = 2 ** (columns - 1).bit_length() - columns
    with_zeros = pad(x.double(), (0, padding)).softmax(1)[:, :columns]
    variants, relative = {"padding_counted": with_zeros}, FAR_TOLERANCE if is_far else 2e-5
    return _kernels.result_near(got, right, relative, variants, MISTAKES)
