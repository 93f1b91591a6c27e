"""Finds the globals and modules that a learner's function uses, without calling it."""

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def global_names(function: Callable[..., Any]) -> set[str]:
    """Return the names of the globals that a function, or the methods of a class, read."""
    return {one.argval for one in _instructions(function) if one.opname == "LOAD_GLOBAL"}


def parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters of a function, or of the methods of a class."""
    return {
        name
        for code in _codes(function)
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    }


def modules(function: Callable[..., Any]) -> set[str]:
    """Return the modules that a function imports, and the modules that its globals come from.

    This includes the helper functions that it uses from its own notebook. Classes do not count,
    because they may be the types of the arguments.
    """
    functions, found = [inspect.unwrap(function)], set()
    for one in functions:
        imported, variables = "", getattr(one, "__globals__", {})
        for instruction in _instructions(one):
            if instruction.opname == "IMPORT_NAME":
                found.add(imported := instruction.argval)
            elif instruction.opname == "IMPORT_FROM":
                found.add(f"{imported}.{instruction.argval}")
        for value in (inspect.unwrap(variables.get(name)) for name in global_names(one)):
            if isinstance(value, FunctionType) and value.__globals__ is variables:
                functions += [] if value in functions else [value]
            elif isinstance(value, ModuleType):
                found.add(value.__name__)
            elif not isinstance(value, type):
                found.add(getattr(value, "__module__", None) or "")
    return found


def _codes(function: Callable[..., Any]) -> list[CodeType]:
    members = vars(function).values() if isinstance(function, type) else [function]
    return [member.__code__ for member in members if hasattr(member, "__code__")]


def _instructions(function: Callable[..., Any]) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function or class, including those of inner functions."""
    codes = _codes(function)
    for code in codes:
        for instruction in dis.get_instructions(code):
            yield instruction
            if isinstance(instruction.argval, CodeType):
                codes.append(instruction.argval)  # an inner function, or a comprehension
