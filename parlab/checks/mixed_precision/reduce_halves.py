"""Exercise `reduce_halves`."""

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.messages import something_sent
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.trial import Trial

LARGE = {torch.float16: 4e4, torch.bfloat16: 2e38}  # two of them are no number of the format
NO_HALF = 1e5  # and a bfloat16
SECONDS = 20.0

MISTAKES = Mistakes(
    overflows_in_the_sum=(
        "gradients of ±{size:g} have a mean of as much, and become infinite: the sum over the "
        "ranks does not fit where the mean does. Divide before the sum"
    ),
    summed="the gradients are {ratio:g} times what they should be: the mean is asked for",
    divided_by_all_ranks=(
        "the sum is divided by the {world} ranks that there are: the group has {ranks}"
    ),
    other_dtype="the means went through {got}: `dtype` is {right} here, and the buffer has that",
    copy_written=(
        "gradient {i} is as before: it does not lie in one piece (its strides are {strides}), "
        "`flatten()` of it is a copy, and what is written there does not reach it"
    ),
    gathered=(
        "a rank collects what all others have, by `{api}`: that is N/2 times the bytes of an "
        "all-reduce on a ring"
    ),
    divided_twice="the gradients are an N-th of what they should be: divide once",
    sent_in_float32=(
        "a rank hands in {got} bytes where {right} are enough: it is the tensor of `dtype` that is "
        "sent, 2 bytes a number"
    ),
    one_message_each=(
        "a rank makes {got} collectives: one buffer for all gradients takes one, and each pays a "
        "latency"
    ),
    overflow_hidden=(
        "one rank's {what} is gone after the reduction: then nobody knows that this step has to be "
        "skipped, and who goes on has wrong gradients"
    ),
    not_in_place="the gradients are as before: the means go into them, in place",
)


@check_of(MISTAKES)
def reduce_halves(check: Check) -> str:
    """Check means in both formats, large ones, infinities and NaN, and what is sent."""
    for number, trial in enumerate(check.trials()):
        situation = trial.situation
        for dtype in (torch.float16, torch.bfloat16):
            for what in ("random", "large", "infinity", "NaN") if number == 0 else ("random",):
                trial.situation = f"{situation}, {str(dtype)[6:]}, {what} gradients"
                _reduced(trial, dtype, what, check.world_size)
    return "the means, sent as one buffer of 16 bits; nothing overflows in the sum, or is hidden"


def _reduced(trial: Trial, dtype: torch.dtype, what: str, world: int) -> None:
    shapes = [(trial.draw.randrange(3, 9), 4), (trial.draw.randrange(2, 9),), (1, 1, 3)]
    per_rank = [drawn(trial, shapes, dtype, what, rank) for rank in range(trial.size)]
    mine = [g.clone() for g in per_rank[max(trial.rank, 0)]]
    # As the gradient of a transposed weight: it does not lie in one piece.
    mine[0] = mine[0].t().contiguous().t()
    addresses = [g.data_ptr() for g in mine]
    got = trial.run(mine, dtype, trial.group, seconds=SECONDS)
    trial.require(
        lambda: something_sent(trial),
        lambda: returned(got),
        lambda: means(mine, per_rank, trial.rank, dtype, what, world),
        lambda: bytes_of(trial, sum(g.numel() for g in mine)),
        lambda: kept(mine, addresses),
    )


def drawn(
    trial: Trial, shapes: list[tuple[int, ...]], dtype: torch.dtype, what: str, rank: int
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    found = [torch.randn(shape, generator=generator) for shape in shapes]
    if what == "large":
        found[0][1:3] = LARGE[dtype] * (1 + 0.001 * rank)
        found[1][0] = -LARGE[dtype]
    elif dtype == torch.bfloat16:
        found[0][0, 0] = NO_HALF
    if rank == trial.size - 1 and what in ("infinity", "NaN"):
        found[1][1] = torch.inf if what == "infinity" else torch.nan
    return found


def returned(got: object) -> Finding | None:
    if got is None:
        return None
    return COMMON.returns_something(
        got=f"a {type(got).__name__}", instead="the gradients, in place"
    )


def means(
    got: list[Tensor],
    per_rank: list[list[Tensor]],
    rank: int,
    dtype: torch.dtype,
    what: str,
    world: int,
) -> Finding | None:
    ranks = len(per_rank)
    right = [sum(g.double() for g in parts) / ranks for parts in zip(*per_rank, strict=True)]
    sizes = [sum(g.double().abs() for g in parts) / ranks for parts in zip(*per_rank, strict=True)]
    room = torch.finfo(dtype).eps

    def are(values: list[Tensor], times: float = 1.0) -> bool:
        """Whether they are, to the roundings of gradients that are so many times as large."""
        most = 1.5 * room * times
        return all(
            bool(((a.double() - b).abs() <= most * s + ranks * 2.0**-24)[b.isfinite()].all())
            for a, b, s in zip(got, values, sizes, strict=True)
        )

    for i, (one, wanted) in enumerate(zip(got, right, strict=True)):
        if found := form(one, wanted, i):
            return found
        if one[~wanted.isfinite()].isfinite().any():
            return MISTAKES.overflow_hidden(what=what)
        if what != "large" and bool(one[wanted.isfinite()].isinf().any()):
            return MISTAKES.other_dtype(got="float16", right=dtype)
        if what == "large" and one.isinf().any():
            return MISTAKES.overflows_in_the_sum(size=LARGE[dtype])
    if are(right):
        return None
    if all(same(a, b) for a, b in zip(got, per_rank[rank], strict=True)):
        return MISTAKES.not_in_place()
    if same(got[0], per_rank[rank][0]) and not same(got[1], per_rank[rank][1]):
        return MISTAKES.copy_written(i=0, strides=got[0].stride())
    if ranks < world and are([g * ranks / world for g in right]):
        return MISTAKES.divided_by_all_ranks(world=world, ranks=ranks)
    if dtype == torch.float16 and all(same(g, g.bfloat16()) for g in got):
        return MISTAKES.other_dtype(got="bfloat16", right=dtype)
    if ranks > 1 and are([g * ranks for g in right], ranks):
        return MISTAKES.summed(ratio=ranks)
    if ranks > 1 and are([g / ranks for g in right]):
        return MISTAKES.divided_twice()
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        if found := equal(a.double(), b, f"gradient {i}", 0.01):
            return found
    return evidence(f"the means are less exact than numbers of {dtype} allow: round once, to it")


def form(got: Tensor, right: Tensor, i: int) -> Finding | None:
    if got.dtype != torch.float32 or got.shape != right.shape:
        return evidence(f"gradient {i} is {got.dtype} of shape {tuple(got.shape)} now")
    return None


def bytes_of(trial: Trial, numbers: int) -> Finding | None:
    if trial.size == 1:
        return None
    got, calls = trial.bytes_sent(trial.rank), trial.calls[trial.rank]
    if len(calls) > 1:
        return MISTAKES.one_message_each(got=len(calls))
    if calls[0].op in ("all_gather", "all_to_all", "gather") and trial.size > 2:
        return MISTAKES.gathered(api=calls[0].api)
    if got == 4 * numbers:
        return MISTAKES.sent_in_float32(got=got, right=2 * numbers)
    if got > 2 * numbers * 1.02 + 16:
        return evidence(
            f"a rank hands in {got} bytes where {2 * numbers} are enough, 2 for each number"
        )
    return None


def kept(got: list[Tensor], addresses: list[int]) -> Finding | None:
    if [g.data_ptr() for g in got] != addresses:
        return evidence("the gradients lie in other memory now: copy the means into them")
    return None
