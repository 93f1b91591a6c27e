"""Makes tensors with guards around their memory, which show if a kernel leaves it.

    arena = Arena(device)
    x = arena.place("x", torch.randn(5, 7))                   # a view in the middle of more memory
    y = arena.place("y", torch.randn(5, 7), strides=(9, 1))   # with gaps between its rows
    …
    arena.overwritten()                                       # the guards that a store has changed

A buffer has NaN, or the smallest number for integers, before and after the tensor and in its gaps.
A kernel that loads these numbers gets a wrong result, and `overwritten` finds stores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GUARD = 4096  # elements before and after, enough for a block that crosses the tensor's end
ALIGNMENT = 16  # elements: torch's memory is aligned, and compiled kernels rely on it


@dataclass(frozen=True)
class Buffer:
    """A tensor's memory.

    Attributes:
        name: its name in messages.
        view: the tensor that a kernel gets.
        whole: the view's memory with its guards. This and the next two are one-dimensional.
        inside: True for each element that belongs to the view.
        filler: the values of `whole` before the view was filled.
    """

    name: str
    view: torch.Tensor
    whole: torch.Tensor
    inside: torch.Tensor
    filler: torch.Tensor

    def overwritten(self) -> list[int]:
        """Return the changed elements of guards, as distances from the view's first element."""
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
            self.whole.element_size()
        ]
        changed = self.whole.view(bits) != self.filler.view(bits)
        first = self.view.storage_offset()
        return ((changed & ~self.inside).nonzero().flatten() - first).tolist()


class Arena:
    """Guarded buffers on one device, by name."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.buffers: list[Buffer] = []

    def place(
        self,
        name: str,
        values: torch.Tensor,
        strides: Sequence[int] | None = None,
        shift: int = 0,
    ) -> torch.Tensor:
        """Return a tensor with the values, shape, and dtype of `values`, and with guards.

        Args:
            name: its name in messages.
            values: its first values.
            strides: in elements, none negative. By default, those of a contiguous tensor.
            shift: the distance, in elements, from an address that is a multiple of 16 bytes.
        """
        strides = tuple(strides if strides is not None else values.contiguous().stride())
        span = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
        span = span if values.numel() else 0
        span, first = span + shift, GUARD + shift
        filler = torch.full((span + 2 * GUARD + -span % ALIGNMENT,), _filler(values.dtype))
        filler = filler.to(self.device, values.dtype)
        whole = filler.clone()
        inside = torch.zeros_like(whole, dtype=torch.bool)
        inside.as_strided(values.shape, strides, first).fill_(True)
        view = whole.as_strided(values.shape, strides, first)
        view.copy_(values)
        self.buffers.append(Buffer(name, view, whole, inside, filler))
        return view

    def overwritten(self) -> tuple[str, int] | None:
        """Return the buffer of the first changed guard, and the distance from its beginning."""
        for buffer in self.buffers:
            if found := buffer.overwritten():
                return buffer.name, found[0]
        return None


def _filler(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
