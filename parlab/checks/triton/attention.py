"""Exercise `attention`."""

from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.triton import _kernels
from parlab.checks.triton._kernels import ROUNDED, KernelCall, numbers
from parlab.checks.triton._new_results import require_new_results
from parlab.kernels.buffers import Arena
from parlab.rank import device

TILE = 32
MISTAKES = Mistakes(
    no_max=(
        "the result is not finite if scores are large, because e⁸⁹ is too large for a float32, and "
        "e⁻¹¹⁰ is 0. Subtract each query's own largest score so far"
    ),
    padding_counted=(
        "keys beyond the end of the sequence count with a score of 0. Set their scores to −∞"
    ),
    future_seen="queries use later keys although `causal` is true. Set these scores to −∞",
    result_kept=(
        "the result so far is not corrected if a tile has a larger score. Multiply it by the same "
        "factor as the sum, e^(old largest − new largest)"
    ),
    scores_stored=(
        "the kernel stores {got:,} bytes, expected {right:,}. Store only the result, and only once"
    ),
    beyond_diagonal=(
        "the kernel loads {got:,} bytes, expected {right:,}. If `causal` is true, end the loop at "
        "the diagonal: the keys after it are not used"
    ),
)


def cases(draw: Random) -> dict[str, tuple]:
    """Return heads, length, D, whether the mask is causal, a factor of the scores, and dtype."""
    some = draw.randrange(66, 95)
    table = [
        (1, 64, 16, False, 1, torch.float32),
        (2, some, 32, False, 1, torch.float32),
        (2, 64, 16, True, 1, torch.float32),
        (1, draw.randrange(34, 60), 128, True, 1, torch.float32),
        (3, 1, 16, True, 1, torch.float32),
        (1, draw.randrange(97, 120), 16, False, 4, torch.float32),
        (2, some, 64, True, 100, torch.float32),
        (1, 70, 32, False, 1, torch.float16),
        (2, 45, 16, True, 1, torch.bfloat16),
    ]
    name = "{0} heads, length {1}, D = {2}, causal: {3}, scores times {4}, {5}"
    return _kernels.named(name, table)


@check_of(MISTAKES, ranks=1)
def attention(check: Check) -> str:
    """Check lengths that no tile divides, with and without the mask, and what is loaded."""
    with check.trial() as trial:
        for _, (heads, length, width, causal, factor, dtype) in trial.cases(cases(trial.draw)):
            before = [numbers(trial, heads, length, width) for _ in range(3)]
            before = [x.to(dtype) for x in (before[0] * factor, *before[1:])]
            arena = Arena(device)
            q, k, v = (arena.place(n, x) for n, x in zip("qkv", before, strict=True))
            call = _kernels.run(trial, arena, q, k, v, causal)
            right = expected(*before, causal)
            trial.require(
                lambda: _kernels.one_launch_inside(call, "q", "k", "v"),
                lambda: _kernels.one_program_each(
                    call, heads * -(-length // TILE), "tiles of queries"
                ),
                lambda: _kernels.result_is(
                    call,
                    dtype,
                    right,
                    lambda: values(call.result, *before, causal, right),
                    once=False,
                ),
                lambda: stores_result(call, q),
                lambda: loads(call, q, causal),
            )
        require_new_results(trial, *(numbers(trial, 1, 40, 16) for _ in "qkv"), True)
    return "one launch, any length, with and without the mask; scores are never stored"


def stores_result(call: KernelCall, q: Tensor) -> Finding | None:
    got, right = call.accesses.stored, q.numel() * q.element_size()
    return MISTAKES.scores_stored(got=got, right=right) if got > right else None


def loads(call: KernelCall, q: Tensor, causal: bool) -> Finding | None:
    """Require that q is loaded once, and k and v up to each tile's last key."""
    heads, length, width = q.shape
    ends = [min(begin + TILE, length) if causal else length for begin in range(0, length, TILE)]
    right = heads * (length + 2 * sum(ends)) * width * q.element_size()
    everything = heads * (length + 2 * length * len(ends)) * width * q.element_size()
    got = call.accesses.loaded
    if right < got == everything:
        return MISTAKES.beyond_diagonal(got=got, right=right)
    return _kernels.loads_at_most(call, right)


def expected(q: Tensor, k: Tensor, v: Tensor, causal: bool, corrected: bool = True) -> Tensor:
    """Compute attention tile by tile in float64. If `corrected`, correct the result so far."""
    q, k, v = q.double() / q.shape[2] ** 0.5, k.double(), v.double()
    highest = torch.full((*q.shape[:2], 1), -torch.inf).double()
    total, result = torch.zeros_like(highest), torch.zeros_like(q)
    for first in range(0, k.shape[1], TILE):
        part = slice(first, first + TILE)
        scores = q @ k[:, part].mT
        if causal:
            after = torch.arange(k.shape[1])[None, part] > torch.arange(q.shape[1])[:, None]
            scores = scores.masked_fill(after, -torch.inf)
        larger = highest.maximum(scores.amax(2, keepdim=True))
        factor, powers = (highest - larger).exp(), (scores - larger).exp()
        total = total * factor + powers.sum(2, keepdim=True)
        result = result * (factor if corrected else 1) + powers @ v[:, part]
        highest = larger
    return result / total


def values(
    got: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, right: Tensor
) -> Finding | None:
    if (q.abs().max() > 100 or got.isinf().any()) and not got.isfinite().all():
        return MISTAKES.no_max()
    # Weights may be rounded to 16 bits, and large scores are not exact in float32.
    rounding = ROUNDED.get(q.dtype, 2e-7 * float(q.abs().max()))
    longer = (0, 0, 0, -k.shape[1] % TILE)
    variants = {
        "padding_counted": expected(q, *(pad(x, longer) for x in (k, v)), causal),
        "future_seen": expected(q, k, v, False),
        "result_kept": expected(q, k, v, causal, corrected=False),
    }
    absolute = float(v.abs().max()) * rounding + 1e-6
    return _kernels.result_near(got, right, 2e-5, variants, MISTAKES, absolute)
