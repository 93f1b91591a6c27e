"""Exercise `matmul`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Finding, Mistakes, evidence
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
    one_launch,
    run,
)
from parlab.checks.untouched import unchanged
from parlab.kernels.buffers import Arena
from parlab.rank import device

TILE = 32
SPACED = "spaced"  # no stride is 1, nor follows from the shape

MISTAKES = Mistakes(
    **KERNEL.texts,
    **UNDEFINED.texts,
    wrong_programs="{got} programs are launched for {right} tiles of 32 × 32: one for each",
    row_by_row=(
        "the tiles go row by row, as if there were no groups: program 1 has the tile to the right "
        "of program 0's, and not the one below"
    ),
    last_group_as_high=(
        "tiles of the last group are left out: it has {height} rows of tiles, fewer than `group`, "
        "so its columns are shorter. The number of rows is the least of both"
    ),
    half_sums=(
        "the result in {dtype} is off by {times:.2g} times what rounding once takes: sums "
        "of 16 bits lose what is small beside them. `total` is float32"
    ),
    strides_ignored=(
        "a transposed matrix is read as if its rows were adjacent in memory: `{name}.stride()` "
        "says how far apart rows and columns are"
    ),
)

ROUNDED = {torch.float32: 1e-5, torch.float16: 1.05 * 2.0**-11, torch.bfloat16: 1.05 * 2.0**-8}


@check_of(MISTAKES)
def matmul(check: Check) -> str:
    """Check products of many sizes and strides, and the order of their tiles."""
    with check.trial() as trial:
        draw = trial.draw
        for m, k, n, group, dtype, turned in [
            (64, 32, 96, 2, torch.float32, ""),
            (draw.randrange(65, 95), draw.randrange(33, 60), 70, 1, torch.float32, ""),
            (1, draw.randrange(2, 30), 5, 3, torch.float32, ""),
            (150, 20, 70, 2, torch.float32, "a"),
            (40, draw.randrange(33, 60), 30, 4, torch.float32, "b"),
            (20, 400, 33, 2, torch.float16, ""),
            (33, 40, 20, 2, torch.bfloat16, "ab"),
            (35, draw.randrange(33, 60), 40, 2, torch.float32, SPACED),
        ]:
            trial.situation = f"({m}, {k}) times ({k}, {n}), groups of {group}, {str(dtype)[6:]}"
            if turned == SPACED:
                trial.situation += ", gaps between all numbers"
            elif turned:
                trial.situation += f", {' and '.join(turned)} transposed"
            before = numbers(trial, m, k).to(dtype), numbers(trial, k, n).to(dtype)
            arena = Arena(device)
            a = arena.place("a", before[0], strides(m, k, "a", turned))
            b = arena.place("b", before[1], strides(k, n, "b", turned))
            done = run(trial, arena, a, b, group)
            right = before[0].double() @ before[1].double()
            trial.require(
                lambda: inside(done),
                lambda: one_launch(done),
                lambda: unchanged("`a`", a, before[0]),
                lambda: unchanged("`b`", b, before[1]),
                lambda: programs(done, m, n),
                lambda: is_tensor(done.result, (m, n), dtype, "the result"),
                lambda: order(done, m, n, group),
                lambda: all_written(done, done.result, "the result"),
                lambda: defined(done, right),
                lambda: values(done.result, *before, right, turned),
                lambda: by_kernel(done, done.result, "the result"),
                lambda: contiguous(done.result),
            )
    return "one launch, a program a tile, in groups; any sizes and strides, sums in float32"


def strides(rows: int, columns: int, name: str, turned: str) -> tuple[int, int] | None:
    if turned == SPACED:
        return (3 * columns + 4, 3) if name == "a" else (2, 2 * rows + 6)
    return (1, rows) if name in turned else None


def programs(done: Run, m: int, n: int) -> Finding | None:
    got, right = done.made[0].programs, -(-m // TILE) * -(-n // TILE)
    return None if got == right else MISTAKES.wrong_programs(got=got, right=right)


def in_groups(rows: int, columns: int, group: int) -> list[tuple[int, int]]:
    """The tile of each program, in order."""
    return [
        (row, column)
        for first in range(0, rows, group)
        for column in range(columns)
        for row in range(first, min(first + group, rows))
    ]


def order(done: Run, m: int, n: int, group: int) -> Finding | None:
    """Who has stored which tile; on a GPU nobody knows."""
    if not done.seen.known:
        return None
    rows, columns = -(-m // TILE), -(-n // TILE)
    stored = done.seen.programs_of(done.result)[::TILE, ::TILE]
    width, height = (*done.made[0].grid, 1)[:2]
    got = {
        (r, c): numbered(int(stored[r, c]), width, height)
        for r in range(rows)
        for c in range(columns)
    }
    right = {tile: program for program, tile in enumerate(in_groups(rows, columns, group))}
    if got == right:
        return None
    if group > 1 and got == {tile: program for program, tile in enumerate(sorted(right))}:
        return MISTAKES.row_by_row()
    missing = [tile for tile, program in got.items() if program < 0]
    height = rows % group
    if height and 0 < len(missing) < len(got) and all(row >= rows - height for row, _ in missing):
        return MISTAKES.last_group_as_high(height=height)
    if missing and len(missing) < len(got):
        return evidence(f"no program has stored the tile in row and column {missing[0]}")
    if missing:
        return None  # by_kernel says that
    tile = min(right, key=lambda t: (got[t] == right[t], right[t]))
    return evidence(
        f"the tile in row and column {tile}, of {rows} × {columns}, is program {got[tile]}'s, "
        f"where {right[tile]} is right"
    )


def numbered(program: int, width: int, height: int) -> int:
    """A program's place in the order in which they begin: a grid's first axis is the quickest."""
    if program < 0:
        return program
    x, y, z = program % 2**20, program // 2**20 % 2**20, program // 2**40
    return x + width * (y + height * z)


def values(got: Tensor, a: Tensor, b: Tensor, right: Tensor, turned: str) -> Finding | None:
    relative = ROUNDED[a.dtype]
    size = float(right.abs().max())
    absolute = 2e-6 * size if a.dtype == torch.float32 else 1e-5 * size
    if is_near(got, right, relative, absolute):
        return None
    for other, finding in wrong(a, b, turned):
        if is_near(got, other, relative, absolute):
            return finding
    error = (got.double().cpu() - right).abs()
    if a.dtype != torch.float32 and error.max() < 40 * relative * size:
        times = float((error / (relative * right.abs() + absolute)).max())
        return MISTAKES.half_sums(dtype=str(a.dtype)[6:], times=times)
    return near(got, right, "the result", relative, absolute)


def wrong(a: Tensor, b: Tensor, turned: str) -> Iterator[tuple[Tensor, Finding]]:
    if turned == SPACED:
        return
    a, b = a.double(), b.double()
    if "a" in turned:
        yield in_memory(a) @ b, MISTAKES.strides_ignored(name="a")
    if "b" in turned:
        yield a @ in_memory(b), MISTAKES.strides_ignored(name="b")


def in_memory(x: Tensor) -> Tensor:
    """A transposed matrix, read as it lies."""
    return x.t().flatten().view(x.shape)


def contiguous(got: Tensor) -> Finding | None:
    if got.is_contiguous():
        return None
    return evidence(f"the result has strides {tuple(got.stride())}: it is to be contiguous")
