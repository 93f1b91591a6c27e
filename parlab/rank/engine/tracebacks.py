"""Shows errors of a rank cell with the lines that the learner wrote."""

import linecache
import re
import warnings
from pathlib import PurePath
from types import TracebackType
from typing import Any

HANDLED = "  while handling "
MAX_CHARACTERS = 200  # of the message of the error that was being handled
SHOWN_FRAMES = 8  # an endless recursion has a thousand
# Errors for which IPython shows its own text, without the learner's line.
FORMATTED_BY_IPYTHON = (SystemExit, BaseExceptionGroup)
# torch's error if a mesh or a model uses a group from before torch.distributed was started again.
NO_GROUP = "Could not resolve the process group"
GROUP_ENDED = "This group has ended. Rerun the cells that make the group, mesh, or model"
AWAIT = (
    "SyntaxError: in a rank cell, `await` works only in `async def`. Put it into `async def "
    "main()`, and run this: "
    "`concurrent.futures.ThreadPoolExecutor().submit(asyncio.run, main()).result()`"
)


def install(shell: Any) -> None:
    """Show errors of cells in `shell` with the lines that `frames` returns.

    This is clearer than IPython's text, and much faster: IPython parses each file in the traceback,
    which takes seconds for torch.
    """
    shell.InteractiveTB.structured_traceback = _structured_traceback
    shell.SyntaxTB.structured_traceback = _structured_traceback
    usual = shell.showtraceback

    def showtraceback(exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        kind, error, tb = shell._get_exc_info(exc_tuple)
        if isinstance(error, FORMATTED_BY_IPYTHON):
            shell._showtraceback(kind, error, _structured_traceback(kind, error, tb))
        else:
            usual(exc_tuple, *args, **options)

    shell.showtraceback = showtraceback
    warnings.filterwarnings("ignore", "To exit: use 'exit'")  # wrong advice after SystemExit


def _structured_traceback(
    kind: type[BaseException], error: BaseException, tb: Any = None, *args: Any, **kwargs: Any
) -> list[str]:
    if isinstance(error, SyntaxError):
        return syntax_error(error)
    handled = _handled(error)
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    message, places = _message(error), frames(tb)
    if isinstance(error, NameError):
        places += _missing_exercise(error, places)
    if NO_GROUP in message:
        places.append(f"  {GROUP_ENDED}")
    return [message, *places, *handled, *(f"  {type(one).__name__}: {one}" for one in inside)]


def _handled(error: BaseException) -> list[str]:
    """Return a note on the error that was being handled when this one was raised.

    This happens, for example, in `__exit__` of a `with` block. Return no lines if there is none, or
    if it did not pass through the cell, because then a library raised and caught it.
    """
    first = error.__context__
    if first is None or error.__suppress_context__ or _freed(first):
        return []
    places = frames(first.__traceback__)
    if not places:
        return []
    message = _message(first).partition("\n")[0][:MAX_CHARACTERS]
    return [f"{HANDLED}{message} ({places[0].strip().partition(':')[0]})"]


def _freed(error: BaseException) -> bool:
    """Return True if parlab raised this error in a call that was stuck, in order to free it."""
    # Check the text, because the kernel also imports this module and must not start MPI.
    return isinstance(error, KeyboardInterrupt) or "MPI_ERR_REVOKED" in _message(error)


def _missing_exercise(error: NameError, places: list[str]) -> list[str]:
    """Return a line that says which cell to run if a check came before its exercise."""
    called = re.search(r": check\.(\w+)\((\w+)", places[0]) if places else None
    if called is None or error.name != called[2]:
        return []
    return [f"  First run the cell of exercise {called[1]} above, which defines {called[2]}"]


def _message(error: BaseException) -> str:
    """Return the type and the text of an error, in the same form as in the reply to the cell."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # raised by the learner's own `__str__`
        return type(error).__name__


def syntax_error(error: SyntaxError) -> list[str]:
    """Return the message, the line, and a mark below the position of the error."""
    lines = [f"{type(error).__name__}: {error.msg}"]
    if "'await' outside" in str(error.msg):
        lines[0] = AWAIT
    if error.text:
        text = error.text.rstrip()
        lines.append(f"  line {error.lineno}: {text}")
        column = len(f"  line {error.lineno}: ") + max(0, (error.offset or 1) - 1)
        lines.append(" " * column + "^")
    return lines


def is_cell(file: str) -> bool:
    """Return True if this is the file name of a cell."""
    # IPython keeps the source of a cell under a temporary folder named for the process.
    return PurePath(file).parent.name.startswith("ipykernel_")


def frames(tb: TracebackType | None) -> list[str]:
    """Return the learner's lines, innermost first, then the library line that raised the error."""
    lines, raised_in = [], None
    while tb is not None:
        code = tb.tb_frame.f_code
        if is_cell(code.co_filename):
            source = linecache.getline(code.co_filename, tb.tb_lineno).strip()
            if source.startswith("get_ipython().run_cell_magic("):  # contains the magic's lines
                tb = tb.tb_next
                continue
            function = "" if code.co_name == "<module>" else f" of {code.co_name}"
            lines.append(f"  line {tb.tb_lineno}{function}: {source}")
            raised_in = None
        elif lines:
            name = "/".join(PurePath(code.co_filename).parts[-3:])
            raised_in = f"  raised in {name}, line {tb.tb_lineno}, {code.co_name}"
        tb = tb.tb_next
    lines.reverse()
    if len(lines) > SHOWN_FRAMES:
        lines[SHOWN_FRAMES:] = [f"  … {len(lines) - SHOWN_FRAMES} more calls"]
    return lines + ([raised_in] if raised_in else [])
