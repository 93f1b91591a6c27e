"""Exercise `vector_add`."""

from random import Random

import torch
from torch import Tensor

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.triton import _kernels
from parlab.checks.triton._kernels import KernelCall, result_is
from parlab.checks.triton._new_results import require_new_results
from parlab.kernels.buffers import Arena
from parlab.rank import device

MISTAKES = Mistakes(**_kernels.KERNEL.texts)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)


def cases(draw: Random) -> dict[str, tuple]:
    table = [((block * 3,), block, torch.float32) for block in (16, 64)]
    table += [((n,), 64, torch.float32) for n in (1, 63, 64, 65, draw.randrange(200, 900))]
    table += [((draw.randrange(900, 1000),), 16, torch.float32)]
    table += [((draw.randrange(3, 9), 37), 128, dtype) for dtype in DTYPES]
    table += [((3, draw.randrange(3, 9), 11), 32, torch.float32), ((2, 700), 1024, torch.float32)]
    return _kernels.named("shape {}, block {}, {}", table)


@check_of(MISTAKES, ranks=1)
def vector_add(check: Check) -> str:
    """Check sums of many sizes and blocks, with guards around all memory."""
    with check.trial() as trial:
        for _, (shape, block, dtype) in trial.cases(cases(trial.draw)):
            # Integers that are too large for a float32.
            scale = 1 if dtype.is_floating_point else 10_000_019
            before = [_kernels.numbers(trial, *shape, dtype=dtype) * scale for _ in range(2)]
            arena, right = Arena(device), before[0] + before[1]
            x, y = arena.place("x", before[0]), arena.place("y", before[1])
            call = _kernels.run(trial, arena, x, y, block)
            trial.require(
                lambda: _kernels.one_launch_inside(call, "x", "y"),
                lambda: programs(call, right.numel(), block),
                lambda: result_is(call, dtype, right, lambda: equal(call.result.cpu(), right)),
                lambda: loads_arguments(call, x, y),
            )
        require_new_results(trial, *(_kernels.numbers(trial, 70) for _ in "xy"), 64)
    return "one launch of ⌈n/block⌉ programs; sizes that are no multiple of the block, four dtypes"


def programs(call: KernelCall, size: int, block: int) -> Finding | None:
    got, right = call.launches[0].programs, -(-size // block)
    return _kernels.unless(
        got == right,
        f"{got} programs are launched, expected ⌈{size}/{block}⌉ = {right}: n is the number of "
        "all elements. Round up with `triton.cdiv(n, block)`",
    )


def loads_arguments(call: KernelCall, x: Tensor, y: Tensor) -> Finding | None:
    """Require that the kernel loads an argument itself. It may add a copy of the other."""
    is_loaded = not call.accesses.known or any(call.accesses.loaded_from(t).all() for t in (x, y))
    return _kernels.unless(
        is_loaded, "the kernel loads neither `x` nor `y`: it must compute their sum"
    ) or _kernels.loads_at_most(call, x.nbytes + y.nbytes)
