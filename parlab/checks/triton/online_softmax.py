"""Exercise `online_softmax`."""

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.triton import _kernels
from parlab.checks.triton._kernels import KernelCall, result_is
from parlab.checks.triton._new_results import require_new_results
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    block_of_infinities=(
        "row {row} is NaN. All numbers of its first block are −∞, and −∞ − (−∞) is NaN. Subtract 0 "
        "as long as the largest number is −∞"
    ),
    no_max=(
        "the result is not finite if `x` has large numbers, because e⁸⁹ is too large for a "
        "float32. Subtract the largest number so far"
    ),
    sum_kept=(
        "the sum so far is not corrected if a block has a larger number. Multiply it by "
        "e^(old largest − new largest)"
    ),
    block_too_large=(
        "a load has {count} elements, but `block` is {block}. Go through the row in blocks"
    ),
)
FLOAT32 = 2e-5


def rows(trial: Trial, count: int, columns: int, around: float = 0.0) -> Tensor:
    """Draw rows whose largest numbers come late, so that each block has a larger one."""
    x = _kernels.numbers(trial, count, columns)
    return x + around + torch.linspace(0, 6, columns)


def cases(trial: Trial) -> dict[str, tuple[Tensor, int, int]]:
    """Return matrices, the distances between their rows, and block sizes."""
    draw, width = trial.draw, trial.draw.randrange(150, 180)
    gap = width + draw.randrange(1, 60)
    infinite = rows(trial, 4, width)
    infinite[1, :40] = infinite[2, 70:] = infinite[3, 1:] = -torch.inf
    return {
        "128 columns in blocks of 32": (rows(trial, 3, 128), 128, 32),
        "37 columns in blocks of 16": (rows(trial, draw.randrange(3, 6), 37), 37, 16),
        "5 columns in a block of 64": (rows(trial, 3, 5), 5, 64),
        "falling numbers": (rows(trial, 3, width).flip(1), width, 64),
        "rows with gaps": (rows(trial, 3, width), gap, 32),
        "blocks of −∞": (infinite, width, 32),
        "numbers around 300": (rows(trial, 3, width, 300), width, 64),
        "numbers around −400": (rows(trial, 3, width, -400), width, 64),
        "3,000 columns in blocks of 1,024": (rows(trial, 2, 3000), 3000, 1024),
        "float16": (rows(trial, 3, width).half(), width, 64),
        "bfloat16 rows with gaps": (rows(trial, 3, width).bfloat16(), gap, 64),
    }


@check_of(MISTAKES, ranks=1)
def online_softmax(check: Check) -> str:
    """Check rows longer and shorter than a block, with blocks of −∞, in three dtypes."""
    with check.trial() as trial:
        for _, (before, stride, block) in trial.cases(cases(trial)):
            arena = Arena(device)
            x = arena.place("x", before, (stride, 1))
            call = _kernels.run(trial, arena, x, block)
            right = before.double().softmax(1)
            trial.require(
                lambda: _kernels.one_launch_inside(call, "x"),
                lambda: in_blocks(call, block),
                lambda: result_is(
                    call, x.dtype, right, lambda: values(call.result, before, right, block)
                ),
                lambda: _kernels.one_program_each(call, len(x), "rows"),
                lambda: _kernels.loads_all(call, x, "`x`"),
                lambda: _kernels.loads_at_most(call, 2 * x.numel() * x.element_size()),
            )
        require_new_results(trial, rows(trial, 3, 37), 16)
    return "one launch, rows of any length in blocks, each number loaded twice and stored once"


def in_blocks(call: KernelCall, block: int) -> Finding | None:
    count = call.accesses.largest_load
    return MISTAKES.block_too_large(count=count, block=block) if count > block else None


def values(got: Tensor, x: Tensor, right: Tensor, block: int) -> Finding | None:
    nan = got.isnan().any(1).cpu()
    if (x.isinf() & nan[:, None])[:, 0].any():
        return MISTAKES.block_of_infinities(row=int(nan.nonzero()[0]))
    if x.max() > 80 and not got.isfinite().all():
        return MISTAKES.no_max()
    powers = (x.double() - x.double().amax(1, keepdim=True)).exp()
    kept, highest = torch.zeros(len(x), 1), torch.full((len(x), 1), -torch.inf).double()
    for piece in x.double().split(block, 1):
        highest = highest.maximum(piece.amax(1, keepdim=True))
        kept = kept + (piece - highest.clamp(min=-1e6)).exp().sum(1, keepdim=True)
    variants = {"sum_kept": powers / kept}
    return _kernels.result_near(got, right, FLOAT32, variants, MISTAKES)
