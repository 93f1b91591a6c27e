"""Bytes of optimizer states, from the shapes of the parameters, also with ZeRO's first stage.

Adafactor: Shazeer and Stern 2018 (arXiv:1804.04235). 8-bit states: Dettmers et al. 2022
(arXiv:2110.02861), with the sizes of bitsandbytes 0.50. The step counters, a few bytes for each
tensor, are left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

Shape = Sequence[int]

BLOCK = 256  # numbers that share a scale in bitsandbytes
SMALLEST_8BIT = 4096  # smaller tensors keep 32-bit states there


def adam_8bit(shape: Shape) -> float:
    """Return two bytes per number and two 32-bit scales per block; 8 per number if small."""
    numbers = math.prod(shape)
    if numbers < SMALLEST_8BIT:
        return 8 * numbers
    return 2 * numbers + 2 * 4 * math.ceil(numbers / BLOCK)


def adafactor(shape: Shape) -> float:
    """Return the bytes of a mean for each row and column, or for each number of a vector."""
    if len(shape) < 2:
        return 4 * math.prod(shape)
    *rest, rows, columns = shape
    return 4 * math.prod(rest) * (rows + columns)


# Bytes of the states of a parameter of a given shape, in 32 bits unless the name says 8-bit.
OPTIMIZERS: Mapping[str, Callable[[Shape], float]] = MappingProxyType(
    {
        "SGD": lambda _: 0.0,
        "SGD with momentum": lambda shape: 4.0 * math.prod(shape),
        "Adam": lambda shape: 8.0 * math.prod(shape),
        "AdamW 8-bit": adam_8bit,
        "Adafactor": adafactor,
    }
)


def states_bytes(optimizer: str, shapes: Sequence[Shape]) -> float:
    """Return the bytes of an optimizer's states for parameters of these shapes.

    Raises ValueError for an optimizer that is not in `OPTIMIZERS`.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no optimizer {optimizer!r}: use one of {', '.join(OPTIMIZERS)}")
    return sum(map(OPTIMIZERS[optimizer], shapes))


def bytes_per_parameter(
    optimizer: str, shapes: Sequence[Shape], ranks: int = 1, *, master: bool = False
) -> float:
    """Return a rank's bytes of parameters, gradients, and optimizer states, per parameter.

    With several `ranks`, ZeRO's first stage shards the optimizer states. Parameters and gradients
    have 32 bits; with `master`, they have 16, and the states include a 32-bit copy.
    """
    numbers = sum(map(math.prod, shapes))
    states = states_bytes(optimizer, shapes) / numbers + (4 if master else 0)
    return (4 if master else 8) + states / ranks
