"""Exercise `softmax`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.triton.watched import (
    KERNEL,
    UNDEFINED,
    Run,
    all_written,
    by_kernel,
    defined,
    inside,
    is_near,
    is_tensor,
    near,
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
    **UNDEFINED.texts,
    row_stride=(
        "the rows of `x` are {stride} elements apart, and have {columns}: row i begins at "
        "i · x.stride(0), and it is looked for elsewhere ({where})"
    ),
    no_max=(
        "the result is not finite where numbers are large: e⁸⁹ is no float32. Subtract the row's "
        "maximum first"
    ),
    padding_counted=(
        "each masked element of a block counts as a 0 of the row, e⁰ = 1 in the sum: `other=` says "
        "what a load gives there, and −∞ is what neither maximum nor sum notices"
    ),
    finite_padding=(
        "a row far below 0 comes out as zeros, as if the masked elements of a block stood above "
        "it: with −∞ as `other=` they stand below any row"
    ),
    copied=(
        "{count} of {size} numbers of `x` are never loaded by a kernel: a copy of `x` is a trip to "
        "memory of its own, and a kernel finds rows that are `x.stride(0)` apart"
    ),
    not_divided="the powers are right, and not divided by their sum",
    half_precision=(
        "the result in {dtype} is off by {error:.2g} of it, where rounding once takes {eps:.2g}: "
        "convert to float32 after the load, not before the store"
    ),
    loaded_again=(
        "{got:,} bytes are loaded where the matrix has {right:,}: a row is loaded once, and kept"
    ),
)

# Of 16-bit numbers half a gap, since they are rounded once, and a little for float32's own errors.
RELATIVE = {torch.float32: 2e-5, torch.float16: 1.05 * 2.0**-11, torch.bfloat16: 1.05 * 2.0**-8}

# Below any number that somebody takes for −∞. Float32 has gaps of 2⁻⁵ there, so that an exponent
# such as x − (maximum + log of the sum) is rounded to them.
FAR, FAR_RELATIVE = 300_000, 2 * 2.0**-5


@check_of(MISTAKES)
def softmax(check: Check) -> str:
    """Check rows of many lengths, near and far apart, large and small, in three dtypes."""
    with check.trial() as trial:
        draw = trial.draw
        width = draw.randrange(65, 127)
        for rows, columns, stride, high, dtype in [
            (5, 64, 64, 0, torch.float32),
            (draw.randrange(3, 9), 33, 33, -3, torch.float32),
            (3, 1, 1, 0, torch.float32),
            (4, width, width + draw.randrange(1, 60), 0, torch.float32),
            (3, width, width, 300, torch.float32),
            (3, width, width, -400, torch.float32),
            (3, width, width, -FAR, torch.float32),
            (4, width, width, 5, torch.float16),
            (4, width, width + 3, 5, torch.bfloat16),
        ]:
            trial.situation = (
                f"{rows} rows of {columns}, {stride} apart, around {high}, {str(dtype)[6:]}"
            )
            before = numbers(trial, rows, columns) * 4 + high
            if columns > 40:
                before[0, 3:7] = -torch.inf
            before = before.to(dtype)
            arena = Arena(device)
            x = arena.place("x", before, (stride, 1))
            done = run(trial, arena, x)
            right = before.double().softmax(1)
            relative = FAR_RELATIVE if high == -FAR else RELATIVE[dtype]
            trial.require(
                lambda: rows_found(done, x),
                lambda: inside(done),
                lambda: one_launch(done),
                lambda: unchanged("`x`", x.masked_fill(x.isinf(), 0), finite(before)),
                lambda: is_tensor(done.result, tuple(x.shape), dtype, "the result"),
                lambda: all_written(done, done.result, "the result"),
                lambda: defined(done, right),
                lambda: values(done.result, before, right, relative),
                lambda: by_kernel(done, done.result, "the result"),
                lambda: once(done, x),
            )
    return "one launch, each number loaded and stored once; any stride, size and dtype"


def finite(x: Tensor) -> Tensor:
    return x.masked_fill(x.isinf(), 0)


def rows_found(done: Run, x: Tensor) -> Finding | None:
    """A kernel that stays inside where rows are adjacent, and leaves it where they are not."""
    outside = done.seen.outside
    if outside is None or outside.stores or x.is_contiguous() or outside.buffer != "x":
        return None
    where = f"element {outside.distance} lies between two rows"
    if outside.distance >= (len(x) - 1) * x.stride(0) + x.shape[1]:
        where = f"element {outside.distance} lies behind the last"
    return MISTAKES.row_stride(stride=x.stride(0), columns=x.shape[1], where=where)


def values(got: Tensor, x: Tensor, right: Tensor, relative: float) -> Finding | None:
    if is_near(got, right, relative):
        return None
    for other, finding in wrong(x):
        if is_near(got, other, relative):
            return finding
    if not got.isfinite().all() and x[x.isfinite()].max() > 80:
        return MISTAKES.no_max()
    error = (got.double().cpu() - right).abs()
    off = float((error / right.clamp(min=1e-4)).max())
    if x.dtype != torch.float32 and off < 40 * relative:
        return MISTAKES.half_precision(dtype=str(x.dtype)[6:], error=off, eps=relative)
    return near(got, right, "the result", relative)


def wrong(x: Tensor) -> Iterator[tuple[Tensor, Finding]]:
    x = x.double()
    columns = x.shape[1]
    padding = 2 ** (columns - 1).bit_length() - columns
    padded = torch.nn.functional.pad(x, (0, padding))
    if padding and x[x.isfinite()].max() < -1000:
        yield torch.zeros_like(x), MISTAKES.finite_padding()
    elif padding:
        yield padded.softmax(1)[:, :columns], MISTAKES.padding_counted()
    yield (x - x.amax(1, keepdim=True)).exp(), MISTAKES.not_divided()
    yield x.exp(), MISTAKES.not_divided()


def once(done: Run, x: Tensor) -> Finding | None:
    if not done.seen.known:
        return None
    right = x.numel() * x.element_size()
    if count := int((~done.seen.loaded_from(x)).sum()):
        return MISTAKES.copied(count=count, size=x.numel())
    if done.seen.loaded > right:
        return MISTAKES.loaded_again(got=done.seen.loaded, right=right)
    return once_stored(done, done.result, "the result")
