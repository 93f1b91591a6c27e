"""Exercises that are worked out with Python's own numbers."""

from collections.abc import Callable
from typing import Any

from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.reading import global_names

_LIBRARIES = frozenset({"array", "ctypes", "np", "numpy", "struct", "torch"})

LIBRARY = Mistakes(
    converted_by_library=(
        "it asks {name} for the answer: with Python's own integers and floats, and `math`, you see "
        "what such a conversion does"
    ),
)


def by_hand(function: Callable[..., Any]) -> Finding | None:
    """Whether a function does without the libraries that have a half of their own."""
    code = getattr(function, "__code__", None)
    used = global_names(function) | set(code.co_names if code else ())
    names = sorted(used & _LIBRARIES)
    return LIBRARY.converted_by_library(name=f"`{names[0]}`") if names else None
