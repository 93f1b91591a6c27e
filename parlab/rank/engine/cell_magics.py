"""Makes errors in `%%time`, `%%timeit`, and `%%capture` cells show the learner's lines.

IPython compiles all cells with the first two magics under the same file name, and does not raise
errors of cells with the last one.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

_bodies: list[str] = []  # of the magics that are running, the outermost first
COMPILED_AS = ("<timed exec>", "<timed eval>", "<magic-timeit>")


def after_cell(shell: Any, call: Callable[..., None]) -> None:
    """Call `call` when a cell of `shell` has ended, but not when only a magic's body has ended."""
    shell.events.register("post_run_cell", lambda *_: None if _bodies else call())


def install(shell: Any) -> None:
    """Compile the bodies of these magics under the file names of cells, and raise their errors."""
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
    """Rename the function in which `%%timeit` wraps the body to "<module>", as in other cells."""
    inside = (
        one.replace(co_name="<module>") if isinstance(one, CodeType) else one
        for one in code.co_consts
    )
    return code.replace(co_consts=tuple(inside))
