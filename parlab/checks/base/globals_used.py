"""Finds the globals and modules that a learner's function uses, without calling it."""

import dis
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any


def global_names(function: Callable[..., Any]) -> set[str]:
    """Return the names of the globals that a function reads, or the methods of a class."""
    return {one.argval for one in _instructions(function) if one.opname == "LOAD_GLOBAL"}


def modules(function: Callable[..., Any]) -> set[str]:
    """Return the modules that a function imports, and those that its globals come from."""
    found, imported = set(), ""
    for one in _instructions(function):
        if one.opname == "IMPORT_NAME":
            found.add(imported := one.argval)
        elif one.opname == "IMPORT_FROM":
            found.add(f"{imported}.{one.argval}")
    variables = getattr(function, "__globals__", {})
    for value in (variables.get(name) for name in global_names(function)):
        module = value.__name__ if isinstance(value, ModuleType) else None
        found.add(module or getattr(value, "__module__", None) or "")
    return found


def _instructions(function: Callable[..., Any]) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function, and of what is defined in it; or of a class."""
    members = vars(function).values() if isinstance(function, type) else [function]
    codes: list[CodeType] = [m.__code__ for m in members if hasattr(m, "__code__")]
    for code in codes:
        for instruction in dis.get_instructions(code):
            yield instruction
            if isinstance(instruction.argval, CodeType):
                codes.append(instruction.argval)  # an inner function, or a comprehension
