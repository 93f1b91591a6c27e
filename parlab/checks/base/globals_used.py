"""What a learner's function says of itself, without being called."""

import dis
from collections.abc import Callable
from types import CodeType
from typing import Any


def global_names(function: Callable[..., Any]) -> set[str]:
    """Names of the globals that the function's own code reads, or a class's methods do."""
    members = vars(function).values() if isinstance(function, type) else [function]
    codes: list[CodeType] = [m.__code__ for m in members if hasattr(m, "__code__")]
    names = set()
    for code in codes:
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL":
                names.add(instruction.argval)
            elif isinstance(instruction.argval, CodeType):
                codes.append(instruction.argval)  # a function inside, a comprehension
    return names
