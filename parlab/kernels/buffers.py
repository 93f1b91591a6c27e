"""Tensors with guards around their memory, so that a kernel that leaves it is seen.

    arena = Arena(device)
    x = arena.place("x", torch.randn(5, 7))                   # a view in the middle of more memory
    y = arena.place("y", torch.randn(5, 7), strides=(9, 1))   # with gaps between its rows
    …
    arena.overwritten()                                       # the guards that a store has changed

Before it, behind it, and in its gaps a buffer is filled with NaN (integers: with their least
number), so that what a kernel loads there spoils its result, and what it stores there is noticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GUARD = 4096  # elements before and behind: a block that runs over ends within
ALIGNMENT = 16  # elements: memory that torch gives is aligned, and compiled kernels rely on it


@dataclass(frozen=True)
class Buffer:
    """A tensor's memory: `view` is what a kernel gets, `whole` has the guards, `inside` tells."""

    name: str
    view: torch.Tensor
    whole: torch.Tensor  # (elements,)
    inside: torch.Tensor  # (elements,), bool: whether an element is the view's
    filler: torch.Tensor  # (elements,), as `whole` was before

    def overwritten(self) -> list[int]:
        """The elements of guards that have changed, as distances from the view's first element."""
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
            self.whole.element_size()
        ]
        changed = self.whole.view(bits) != self.filler.view(bits)
        return ((changed & ~self.inside).nonzero().flatten() - GUARD).tolist()


class Arena:
    """Guarded buffers on one device, by name."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.buffers: list[Buffer] = []

    def place(
        self, name: str, values: torch.Tensor, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A tensor of these values (and shape and dtype), with guards.

        Args:
            name: what messages call it.
            values: what it holds at first.
            strides: its strides in elements, none negative; else those of a contiguous tensor.
        """
        strides = tuple(strides if strides is not None else values.contiguous().stride())
        span = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
        span = span if values.numel() else 0
        filler = torch.full((span + 2 * GUARD + -span % ALIGNMENT,), _filler(values.dtype))
        filler = filler.to(self.device, values.dtype)
        whole = filler.clone()
        inside = torch.zeros_like(whole, dtype=torch.bool)
        inside.as_strided(values.shape, strides, GUARD).fill_(True)
        view = whole.as_strided(values.shape, strides, GUARD)
        view.copy_(values)
        self.buffers.append(Buffer(name, view, whole, inside, filler))
        return view

    def overwritten(self) -> tuple[str, int] | None:
        """The first guard that has changed: a buffer's name, and how far from its beginning."""
        for buffer in self.buffers:
            if found := buffer.overwritten():
                return buffer.name, found[0]
        return None


def _filler(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
