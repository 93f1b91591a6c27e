"""Counts the launches of Triton kernels, compiled ones and interpreted ones alike.

with launches() as made:
    vector_add(x, y)
made[0].kernel, made[0].programs      # "add_kernel", 4
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from parlab.kernels.asking import INTERPRETED


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's name, its grid, and the positional and keyword arguments."""

    kernel: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]

    @property
    def programs(self) -> int:
        return prod(self.grid)


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """The launches that are made within, in order, by any function on any thread."""
    made: list[Launch] = []
    kind = InterpretedFunction if INTERPRETED else JITFunction
    run = kind.run
    kind.run = _noting(run, made)
    try:
        yield made
    finally:
        kind.run = run


def _noting(run: Callable, made: list[Launch]) -> Callable:
    def noted(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if not warmup:
            given = dict(zip(self.arg_names, arguments, strict=False)) | named
            size = grid(given) if callable(grid) else grid
            size = tuple(size) if isinstance(size, tuple | list) else (size,)
            made.append(Launch(self.fn.__name__, tuple(map(int, size)), given))
        return run(self, *arguments, grid=grid, warmup=warmup, **named)

    return noted
