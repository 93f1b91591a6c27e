"""Runs the reader's program on this rank, and reports how it ended and on which line."""

import gc
import importlib
import io
import json
import linecache
import signal
import sys
import time
import types
from types import FrameType, TracebackType
from typing import Any

import _hub
import numpy  # noqa: F401 - stays loaded between runs

# How a rank ended, by its error. Modules are new in each run, so classes are compared by name.
_KINDS = {
    "mpi4py._values.Deadlock": "stuck",
    "builtins.KeyboardInterrupt": "interrupted",
    "parlab.checks.base.verdict.CheckFailed": "failed",
}
PROGRAM, SETUP, CHECK = "/program.py", "/setup.py", "/check.py"
MOST_CHARACTERS = 100_000
FLUSH_SECONDS = 0.05
_stopped = False  # True if the page has interrupted this run while none of its code ran
# These packages are imported again in each run, so that runs do not interact.
_RENEWED = ("mpi4py", "parlab", "seams")
sys.dont_write_bytecode = False  # Pyodide's setting is True; compiling them takes longest
gc.freeze()  # loaded objects stay, so the collection after each run can skip them


class Output(io.TextIOBase):
    """Sends the printed text to the page, and stops a program that prints endlessly."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._left, self._sent = MOST_CHARACTERS, 0.0
        self._interrupted = False  # True if an interrupt came while a text was being sent

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left < 0:
            return len(text)  # the program continues after the error
        self._waiting.append(text[: self._left])
        self._left -= len(text)
        if self._left < 0:
            self.flush()
            raise RuntimeError(
                f"this rank printed more than {MOST_CHARACTERS:,} characters: the page stopped it"
            )
        if "\n" in text and time.monotonic() - self._sent > FLUSH_SECONDS:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._waiting:
            self._send()
        if self._interrupted:
            self._interrupted = False
            signal.raise_signal(signal.SIGINT)

    def _send(self) -> None:
        _hub.write("".join(self._waiting))
        self._waiting.clear()
        self._sent = time.monotonic()

    def postpones(self, frame: FrameType | None) -> bool:
        """Return True if an interrupt in `frame` would lose a text or send it twice.

        `flush` then repeats the interrupt.
        """
        while frame is not None and frame.f_code is not Output._send.__code__:
            frame = frame.f_back
        self._interrupted = self._interrupted or frame is not None
        return frame is not None


class NoInput(io.TextIOBase):
    """Standard input: ranks have none."""

    def readline(self, size: int | None = -1) -> str:
        raise RuntimeError("ranks have no keyboard: put the value into the program")

    read = readline


def sleep(seconds: float) -> None:
    """Sleep for this time, or until the page stops this rank."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    if _hub.sleep(float(seconds)) != 0:
        _interrupt(signal.SIGINT, sys._getframe(1))


time.sleep = sleep


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in the run's code, and record the reader's innermost line.

    Before that code runs, only record the interrupt. After it, the rank already reports how it
    ended.
    """
    global _stopped
    if isinstance(sys.stdout, Output) and sys.stdout.postpones(frame):
        return
    files, line = set(), 0
    while frame is not None:
        file = frame.f_code.co_filename
        if file == PROGRAM and not line:
            line = frame.f_lineno
        files.add(file)
        frame = frame.f_back
    _hub.interrupted(line)
    if files & {PROGRAM, SETUP, CHECK}:
        raise KeyboardInterrupt
    _stopped = True


signal.signal(signal.SIGINT, _interrupt)


def run_program(code: str, setup: str, check: str, rank: int, size: int) -> str:
    """Run `setup`, `code`, and `check` in the same names. Return the result as JSON."""
    global _stopped
    _stopped = False
    for name in [name for name in sys.modules if name.partition(".")[0] in _RENEWED]:
        del sys.modules[name]
    output = sys.stdout = sys.stderr = Output()
    sys.stdin = NoInput()
    for file, text in ((PROGRAM, code), (SETUP, setup), (CHECK, check)):
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    result: dict[str, Any] = {"kind": "returned", "line": 0, "text": "", "error": ""}
    try:
        _run(code, setup, check, rank, size)
    except BaseException as error:
        result |= _described(error)
        result["text"] = linecache.getline(PROGRAM, result["line"]).strip()
        error.__traceback__ = None
    signal.signal(signal.SIGINT, _interrupt)  # the program may have replaced it
    output.flush()
    gc.collect()
    return json.dumps(result)


def _run(code: str, setup: str, check: str, rank: int, size: int) -> None:
    MPI = importlib.import_module("mpi4py.MPI")
    MPI._begin(rank, size)
    if setup or check:
        importlib.import_module("seams").prepare()
    module, before = types.ModuleType("__main__"), sys.modules["__main__"]
    names = vars(module)
    for name in ("__main__", "exercise"):  # where pickle looks up the program's classes
        sys.modules[name] = module
    _hub.set_inside(True)
    try:
        if _stopped:
            raise KeyboardInterrupt
        _set_up(setup, names)
        _execute(code, names, may_exit=not check)
        _hub.set_inside(False)
        exec(compile(check, CHECK, "exec"), names)
    finally:
        sys.modules["__main__"] = before  # the program's objects can then be freed
        del sys.modules["exercise"]
        MPI._progress()  # the picture also shows messages that arrived after the last call


def _set_up(setup: str, names: dict[str, Any]) -> None:
    try:
        exec(compile(setup, SETUP, "exec"), names)
    except Exception as error:
        raise RuntimeError(
            "your code of an earlier exercise, which this one calls, has an error. Fix it on its "
            f"own page: {type(error).__name__}: {getattr(error, 'msg', error)}"
        ) from error


def _execute(code: str, names: dict[str, Any], *, may_exit: bool) -> None:
    try:
        exec(compile(code, PROGRAM, "exec"), names)
    except SystemExit as exit:
        if exit.code not in (None, 0) or not may_exit:
            raise


def _described(error: BaseException) -> dict[str, Any]:
    """Return how a program ended that raised this error."""
    kind = _KINDS.get(f"{type(error).__module__}.{type(error).__name__}", "raised")
    line = _line_of(error.__traceback__)
    text = f"{type(error).__name__}: {error}" if kind == "raised" else str(error)
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        line, text = error.lineno or 0, f"{type(error).__name__}: {error.msg}"
    described = {"kind": kind, "line": line, "error": text}
    if kind == "stuck":
        described["waits"] = error.waits  # type: ignore[attr-defined]
    if kind == "failed":
        described["name"] = error.finding.mistake  # type: ignore[attr-defined]
    return described


def _line_of(traceback: TracebackType | None) -> int:
    """Return the innermost line of the reader's program, or 0."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == PROGRAM:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
