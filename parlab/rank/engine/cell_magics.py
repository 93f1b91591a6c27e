"""Cells that begin with `%%time`, `%%timeit` or `%%capture`: their errors have the learner's lines.

IPython compiles the body of the first two under a name that all such cells share, and of the last
keeps errors to itself.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

_bodies: list[str] = []  # of the magics that are running, the outermost first
COMPILED_AS = ("<timed exec>", "<timed eval>", "<magic-timeit>")


def after_cell(shell: Any, call: Callable[..., None]) -> None:
    """Call this when a cell of `shell` has ended; not when the body of such a magic has."""
    shell.events.register("post_run_cell", lambda *_: None if _bodies else call())


def install(shell: Any) -> None:
    """Compile such bodies in `shell` under the names that cells have, and raise their errors."""
    run_magic, run_cell = shell.run_cell_magic, shell.run_cell
    results: list[Any] = []

    def run_cell_magic(name: str, line: str, cell: str) -> Any:
        _bodies.append(cell)
        try:
            value = run_magic(name, line, cell)
        except BaseException:
            results.clear()
            raise
        finally:
            _bodies.pop()
        while results:
            results.pop().raise_error()
        return value

    def run_cell_inside(code: str, *args: Any, **options: Any) -> Any:
        if not (_bodies and code == _bodies[-1]):
            return run_cell(code, *args, **options)
        show, shell.showtraceback = shell.showtraceback, lambda *_, **__: None
        try:
            results.append(run_cell(code, *args, **options))
        finally:
            shell.showtraceback = show
        return results[-1]

    class Compiler(type(shell.compile)):
        def __call__(self, source: Any, filename: str, *args: Any, **options: Any) -> CodeType:
            name = self.cache(_bodies[-1]) if _bodies and filename in COMPILED_AS else filename
            code = super().__call__(source, name, *args, **options)
            return _without_function(code) if filename == "<magic-timeit>" else code

    shell.run_cell_magic, shell.run_cell = run_cell_magic, run_cell_inside
    shell.compile.__class__ = Compiler


def _without_function(code: CodeType) -> CodeType:
    """Let the function into which `%%timeit` puts the body be named as the body of a cell is."""
    inside = (
        one.replace(co_name="<module>") if isinstance(one, CodeType) else one
        for one in code.co_consts
    )
    return code.replace(co_consts=tuple(inside))
