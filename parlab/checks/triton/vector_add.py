"""Exercise `vector_add`."""

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.triton.watched import (
    KERNEL,
    Run,
    all_written,
    by_kernel,
    inside,
    numbers,
    once_stored,
    one_launch,
    run,
)
from parlab.checks.untouched import unchanged
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(
    **KERNEL.texts,
    tail_left=(
        "the last {count} elements are left out: {size} elements are {full} full blocks of {block} "
        "and a part of one, which needs a program too. ⌈n/block⌉ is `triton.cdiv(n, block)`"
    ),
    wrong_programs=(
        "{got} programs are launched where ⌈{size}/{block}⌉ = {right} are enough: each takes "
        "`block` elements"
    ),
    first_block_only=(
        "only the first {block} elements are written: every program does the same ones. "
        "`tl.program_id(0)` says which program it is"
    ),
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)


@check_of(MISTAKES)
def vector_add(check: Check) -> str:
    """Check sums of many sizes and blocks, with guards around all memory."""
    with check.trial() as trial:
        draw = trial.draw
        cases = [((block * 3,), block, torch.float32) for block in (16, 64)]
        cases += [((n,), 64, torch.float32) for n in (1, 63, 64, 65, draw.randrange(200, 900))]
        cases += [((draw.randrange(3, 9), 37), 128, dtype) for dtype in DTYPES]
        cases += [((3, draw.randrange(3, 9), 11), 32, torch.float32), ((2, 700), 1024, DTYPES[0])]
        for shape, block, dtype in cases:
            trial.situation = f"shape {shape}, block {block}, {str(dtype)[6:]}"
            arena = Arena(device)
            # Integers so large that a float32 does not hold them.
            by = 1 if dtype.is_floating_point else 10_000_019
            before = tuple(numbers(trial, *shape, dtype=dtype) * by for _ in range(2))
            x, y = arena.place("x", before[0]), arena.place("y", before[1])
            done = run(trial, arena, x, y, block)
            trial.require(
                lambda: inside(done),
                lambda: one_launch(done),
                lambda: unchanged("`x`", x, before[0]),
                lambda: unchanged("`y`", y, before[1]),
                lambda: programs(done, x, block),
                lambda: equal_or_tail(done, x, before[0] + before[1], block),
            )
    return "one launch of ⌈n/block⌉ programs; sizes that are no multiple of the block, four dtypes"


def programs(done: Run, x: Tensor, block: int) -> Finding | None:
    size, got = x.numel(), done.made[0].programs
    right = -(-size // block)
    if got == size // block and got < right:
        return MISTAKES.tail_left(count=size - got * block, size=size, full=got, block=block)
    if got != right:
        return MISTAKES.wrong_programs(got=got, size=size, block=block, right=right)
    return None


def equal_or_tail(done: Run, x: Tensor, right: Tensor, block: int) -> Finding | None:
    got = done.result
    if isinstance(got, Tensor) and got.shape == right.shape and done.seen.known:
        written = done.seen.stored_in(got).flatten()
        if x.numel() > block and written[:block].all() and not written[block:].any():
            return MISTAKES.first_block_only(block=block)
        if got.dtype == right.dtype and (found := all_written(done, got, "the result")):
            return found
    if found := equal(got if got is None else got.cpu(), right):
        return found
    return by_kernel(done, got, "the result") or once_stored(done, got, "the result")
