"""All float16 numbers by their bits, and the requirement to convert without a library."""

from collections.abc import Callable
from typing import Any

import torch

from parlab.checks.base.globals_used import modules
from parlab.checks.base.mistakes import Finding, Mistakes

INFINITY, NEGATIVE = 0x7C00, 0x8000
# VALUES[bits] is the number that these bits represent.
VALUES: list[float] = torch.arange(2**16).to(torch.int16).view(torch.float16).tolist()

_LIBRARIES = frozenset({"array", "ctypes", "numpy", "struct", "torch"})

LIBRARY = Mistakes(
    converted_by_library=(
        "the function uses {name} to convert. Use Python's own integers and floats, and `math`"
    ),
)


def without_library(function: Callable[..., Any]) -> Finding | None:
    """Require that a function and its helpers use no library that has a float16 type."""
    # `struct.pack` is a function of the module `_struct`.
    used = {name.partition(".")[0].lstrip("_") for name in modules(function)}
    names = sorted(used & _LIBRARIES)
    return LIBRARY.converted_by_library(name=f"`{names[0]}`") if names else None
