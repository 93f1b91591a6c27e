"""Finds the globals that a learner's function uses, without calling it."""

import dis
from collections.abc import Callable
from types import CodeType
from typing import Any


def global_names(function: Callable[..., Any]) -> set[str]:
    """Return the names of the globals that a function reads, or the methods of a class."""
    members = vars(function).values() if isinstance(function, type) else [function]
    codes: list[CodeType] = [m.__code__ for m in members if hasattr(m, "__code__")]
    names = set()
    for code in codes:
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL":
                names.add(instruction.argval)
            elif isinstance(instruction.argval, CodeType):
                codes.append(instruction.argval)  # an inner function, or a comprehension
    return names
