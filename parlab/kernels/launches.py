"""Records the launches of Triton kernels, compiled or interpreted.

with launches() as launched:
    vector_add(x, y)
launched[0].kernel, launched[0].programs      # "add_kernel", 4
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from parlab.kernels.mode import INTERPRETED


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's name and its grid."""

    kernel: str
    grid: tuple[int, ...]

    @property
    def programs(self) -> int:
        return prod(self.grid)


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """Record all launches in this context, in order, by any function on any thread."""
    launched: list[Launch] = []
    kind = InterpretedFunction if INTERPRETED else JITFunction
    run = kind.run
    kind.run = _recording(run, launched)
    try:
        yield launched
    finally:
        kind.run = run


def _recording(run: Callable, launched: list[Launch]) -> Callable:
    def recorded(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if not warmup:
            parameters = inspect.signature(self.fn).parameters.values()
            given = {p.name: p.default for p in parameters if p.default is not p.empty}
            given |= dict(zip(self.arg_names, arguments, strict=False)) | named
            size = grid(given) if callable(grid) else grid
            size = tuple(size) if isinstance(size, tuple | list) else (size,)
            launched.append(Launch(self.fn.__name__, tuple(map(int, size))))
        return run(self, *arguments, grid=grid, warmup=warmup, **named)

    return recorded
