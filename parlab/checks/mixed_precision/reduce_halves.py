"""Exercise `reduce_halves`: means of random, large, and overflowed gradients, and what is sent."""

import itertools

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import returns_nothing, same
from parlab.checks.base.messages import something_sent
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial

LARGE = {torch.float16: 4e4, torch.bfloat16: 2e38}  # the sum of two is infinite in the format
SECONDS = 20.0

MISTAKES = Mistakes(
    overflows_in_the_sum=(
        "the mean of gradients of ±{size:g} is infinite, because their sum is too large for 16 "
        "bits. Divide before the sum"
    ),
    summed="the gradients are {ranks} times too large. Compute the mean, not the sum",
    not_in_place=(
        "the memory of gradient {i}, whose strides are {strides}, is unchanged. Write the means "
        "into it, in place. For gradients that are not contiguous, `flatten()` and `reshape(-1)` "
        "return copies"
    ),
    one_message_each=(
        "this rank calls {got} collectives. Put all gradients into one buffer and reduce it once"
    ),
    sent_in_float32="this rank sends float32 numbers. Convert the buffer to `dtype` first",
)


@check_of(MISTAKES)
def reduce_halves(check: Check) -> str:
    """Check the means in both formats, and what is sent."""
    for number, trial in enumerate(check.trials()):
        kinds = ("random", "large", "infinite", "NaN") if number == 0 else ("random",)
        pairs = itertools.product((torch.float16, torch.bfloat16), kinds)
        cases = {f"{str(dtype)[6:]}, {kind} gradients": (dtype, kind) for dtype, kind in pairs}
        for _, (dtype, kind) in trial.cases(cases):
            shapes = [(trial.draw.randrange(3, 9), 4), (trial.draw.randrange(2, 9),), (1, 1, 3)]
            per_rank = [drawn(trial, shapes, dtype, kind, rank) for rank in range(trial.size)]
            own = per_rank[max(trial.rank, 0)]
            # The first gradient is not contiguous, like the gradient of a transposed weight.
            given = [own[0].t().contiguous().t(), *(g.clone() for g in own[1:])]
            memory = [g.detach() for g in given]
            got = trial.run(given, dtype, trial.group, seconds=SECONDS)
            trial.require(
                lambda: something_sent(trial),
                lambda: returns_nothing(got, "means, in place"),
                lambda: means(memory, per_rank, trial.rank, dtype, kind),
                lambda: sent(trial, sum(g.numel() for g in given)),
            )
    return "the means, sent as one buffer of 16 bits; nothing overflows in the sum, or is hidden"


def drawn(
    trial: Trial, shapes: list[tuple[int, ...]], dtype: torch.dtype, kind: str, rank: int
) -> list[Tensor]:
    """Draw the gradients of one rank."""
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    found = [torch.randn(shape, generator=generator) for shape in shapes]
    if kind == "large":
        found[0][1:3] = LARGE[dtype] * (1 + 0.001 * rank)
        found[1][0] = -LARGE[dtype]
    elif dtype == torch.bfloat16:
        found[0][0, 0] = 1e5  # infinite in float16
    if rank == trial.size - 1 and kind in ("infinite", "NaN"):
        found[1][1] = torch.inf if kind == "infinite" else torch.nan
    return found


def means(
    got: list[Tensor], per_rank: list[list[Tensor]], rank: int, dtype: torch.dtype, kind: str
) -> Finding | None:
    """Compare with the means. An infinity or NaN on one rank must not become finite."""
    ranks = len(per_rank)
    for i, gradient in enumerate(got):
        parts = torch.stack([own[i] for own in per_rank]).double()
        right = parts.mean(0)
        # Roundings of `dtype`
        room = 1.5 * torch.finfo(dtype).eps * parts.abs().mean(0) + ranks * 2.0**-24
        missing = torch.where(right.isnan(), gradient.isnan(), ~gradient.isfinite())
        correct = torch.where(right.isfinite(), (gradient - right).abs() <= room, missing)
        if correct.all():
            continue
        if same(gradient.nan_to_num(), per_rank[rank][i].nan_to_num()):
            return MISTAKES.not_in_place(i=i, strides=gradient.stride())
        if kind == "large" and gradient.isinf().any():
            return MISTAKES.overflows_in_the_sum(size=LARGE[dtype])
        if ranks > 1 and bool(((gradient - ranks * right).abs() <= ranks * room).all()):
            return MISTAKES.summed(ranks=ranks)
        index = tuple((~correct).nonzero()[0].tolist())
        return observed(
            f"gradient {i} at index {index} is {gradient[index]:.6g}, expected {right[index]:.6g} "
            f"(rounded to {dtype})"
        )
    return None


def sent(trial: Trial, numbers: int) -> Finding | None:
    """Require one all-reduce of 16-bit numbers."""
    if trial.size == 1:
        return None
    got, calls = trial.bytes_sent(trial.rank), trial.calls[trial.rank]
    if len(calls) > 1:
        return MISTAKES.one_message_each(got=len(calls))
    if got == 4 * numbers:
        return MISTAKES.sent_in_float32()
    if calls[0].op in ("all_gather", "all_to_all", "gather") and trial.size > 2:
        return observed(f"{calls[0].api} sends N/2 times as many bytes as an all-reduce on a ring")
    if got > 2 * numbers * 1.02 + 16:
        return observed(f"this rank sends {got} bytes, expected {2 * numbers}, 2 for each number")
    return None
