"""Exercise `matmul`."""

from random import Random

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.triton import _kernels
from parlab.checks.triton._kernels import ROUNDED, KernelCall, numbers, unless
from parlab.checks.triton._new_results import require_new_results
from parlab.kernels.buffers import Arena
from parlab.rank import device

TILE = 32
MISTAKES = Mistakes(
    row_by_row=(
        "the tiles go row by row, as if there were no groups. Program 1 must compute the tile "
        "below program 0's"
    ),
    strides_ignored=(
        "the kernel reads a transposed matrix as if its rows were adjacent in memory. "
        "`stride()` says how far apart its rows and columns are"
    ),
)


def cases(draw: Random) -> dict[str, tuple]:
    """Return m, k, n, group, dtype, and layout by name."""
    table = [
        (64, 32, 96, 2, torch.float32, "contiguous"),
        (draw.randrange(65, 95), draw.randrange(33, 60), 70, 1, torch.float32, "contiguous"),
        (1, draw.randrange(2, 30), 5, 3, torch.float32, "contiguous"),
        (150, 20, 70, 2, torch.float32, "a transposed"),
        (210, 20, 70, 3, torch.float32, "contiguous"),
        (40, draw.randrange(33, 60), 30, 4, torch.float32, "b transposed"),
        (20, 400, 33, 2, torch.float16, "contiguous"),
        (33, 40, 20, 2, torch.bfloat16, "both transposed"),
        (35, draw.randrange(33, 60), 40, 2, torch.float32, "with gaps between numbers"),
    ]
    return _kernels.named("({0}, {1}) times ({1}, {2}), groups of {3}, {4}, {5}", table)


@check_of(MISTAKES, ranks=1)
def matmul(check: Check) -> str:
    """Check products of many sizes and strides, and the order of their tiles."""
    with check.trial() as trial:
        for _, (m, k, n, group, dtype, layout) in trial.cases(cases(trial.draw)):
            before = numbers(trial, m, k).to(dtype), numbers(trial, k, n).to(dtype)
            arena = Arena(device)
            a = arena.place("a", before[0], strides(m, k, "a", layout))
            b = arena.place("b", before[1], strides(k, n, "b", layout))
            call = _kernels.run(trial, arena, a, b, group)
            right = before[0].double() @ before[1].double()
            trial.require(
                lambda: _kernels.one_launch_inside(call, "a", "b"),
                lambda: _kernels.one_program_each(call, -(-m // TILE) * -(-n // TILE), "tiles"),
                lambda: order(call, right, dtype, group),
                lambda: _kernels.result_is(
                    call, dtype, right, lambda: values(call.result, *before, right, layout)
                ),
                lambda: unless(call.result.is_contiguous(), "the result is not contiguous"),
            )
        require_new_results(trial, numbers(trial, 40, 33), numbers(trial, 33, 40), 2)
    return "one launch, a program a tile, in groups; any sizes and strides, sums in float32"


def is_transposed(name: str, layout: str) -> bool:
    return layout in (f"{name} transposed", "both transposed")


def strides(rows: int, columns: int, name: str, layout: str) -> tuple[int, int] | None:
    if layout.startswith("with gaps"):  # no stride is 1 or follows from the shape
        return (3 * columns + 4, 3) if name == "a" else (2, 2 * rows + 6)
    return (1, rows) if is_transposed(name, layout) else None


def order(call: KernelCall, right: Tensor, dtype: torch.dtype, group: int) -> Finding | None:
    """Require that each program stores its tile. On a GPU, this is not known."""
    if not call.accesses.known or _kernels.is_tensor(call.result, right.shape, dtype):
        return None
    rows, columns = (-(-size // TILE) for size in right.shape)
    tiles = [(row, column) for row in range(rows) for column in range(columns)]
    in_groups = sorted(tiles, key=lambda tile: (tile[0] // group, tile[1], tile[0]))
    stored = call.accesses.programs_of(call.result)[::TILE, ::TILE]
    got = {tile: place_in_grid(int(stored[tile]), call.launches[0].grid) for tile in tiles}
    missing = [tile for tile in tiles if got[tile] is None]
    if len(missing) == len(tiles):
        return None  # `result_is` reports that
    if missing:
        return observed(f"no program stores the tile in row and column {missing[0]}")
    if [got[tile] for tile in in_groups] == list(range(len(tiles))):
        return None
    if group > 1 and [got[tile] for tile in tiles] == list(range(len(tiles))):
        return MISTAKES.row_by_row()
    program, tile = next((i, tile) for i, tile in enumerate(in_groups) if got[tile] != i)
    where = f"the tile in row and column {tile} of {rows} × {columns}"
    return observed(f"program {got[tile]} computes {where}, expected program {program}")


def place_in_grid(program: int, grid: tuple[int, ...]) -> int | None:
    """Return a program's place in the order in which programs begin. The first axis is fastest."""
    if program < 0:
        return None
    x, y, z = program % 2**20, program // 2**20 % 2**20, program // 2**40
    width, height = (*grid, 1)[:2]
    return x + width * (y + height * z)


def values(got: Tensor, a: Tensor, b: Tensor, right: Tensor, layout: str) -> Finding | None:
    absolute = (1e-5 if a.dtype in ROUNDED else 2e-6) * float(right.abs().max())
    as_stored = [
        (x.t().flatten().view(x.shape) if is_transposed(name, layout) else x).double()
        for name, x in (("a", a), ("b", b))
    ]
    wrong = {"strides_ignored": as_stored[0] @ as_stored[1]}
    return _kernels.result_near(got, right, 1e-5, wrong, MISTAKES, absolute)
