"""Finds the error that a kernel raised, in the interpreter or in the compiler."""

import re

from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError

_STUB = re.compile(r'^\s*raise NotImplementedError\("(.+)"\)', re.MULTILINE)


def cause_of(error: Exception) -> BaseException:
    """Return the error that a kernel, or a kernel that it calls, raised.

    The compiler does not know `raise`, so it reports the stub of an exercise as an unsupported
    statement. Return the stub's NotImplementedError instead.
    """
    cause: BaseException = error
    while isinstance(cause, InterpreterError | CompilationError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, CompilationError) and (stub := _STUB.search(cause.src or "")):
        return NotImplementedError(stub[1])
    return cause
