"""Text is UTF-8 in files, in the output of programs, and in names, in any locale."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.grading.sandbox.limiter import family

FOLDERS = ("parlab", "parlab_staff", "benchmarks", "examples", "solutions")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TEXT_METHODS = {"read_text", "write_text"}
PROGRAMS = {"run", "Popen", "check_output"}
# With these variables, Python decodes text as ASCII, like in a container without UTF-8.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def without_encoding(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that read or write text in the encoding of the locale.

    Ruff's PLW1514 finds only calls on objects that it recognizes as paths or files.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if "encoding" in named or None in named:
            continue
        as_text = getattr(named.get("text"), "value", False) is True
        positional = {"read_text": 0, "write_text": 1}.get(name, 9)
        reads = name in TEXT_METHODS and len(node.args) <= positional
        if reads or (name in PROGRAMS and as_text):
            yield node.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_depends_on_the_locale(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == folder
        for line in without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, f'these need encoding="utf-8": {", ".join(found)}'


def test_commands_work_in_an_ascii_locale(tmp_path: Path) -> None:
    handout = tmp_path / "Zoë"
    command = [sys.executable, "-m", "parlab.setup.cli", "release", "01_mpi", "--out"]
    ran = subprocess.run([*command, handout], env=os.environ | ASCII, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.decode().startswith(f"{handout} is ready")
    assert "β" in (handout / "labs" / "01_mpi.ipynb").read_text(encoding="utf-8")


def test_a_process_is_counted_with_any_bytes_in_its_name() -> None:
    """Linux reports the unchanged name, which may contain (, ), a newline, or invalid UTF-8."""
    code = r"import ctypes; ctypes.CDLL(None).prctl(15, b'\xff) (\n'); print(flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        found = family(os.getpid())
        process.communicate(b"\n")
    assert process.pid in found
