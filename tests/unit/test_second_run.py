"""A few tests that failed run once more, alone, in a real pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT

# Each test counts its runs in a file. "once" fails only in the first run.
TESTS = """
from pathlib import Path
import pytest

def run(name):
    with Path(f"{name}.runs").open("a") as file:
        file.write("x")
        return file.tell()

def test_right():
    run("right")

@pytest.mark.parametrize("case", ["a@b"])
def test_once(case):
    assert run("once") > 1

@pytest.mark.xdist_group("some/group")
def test_always():
    run("always")
    assert False

@pytest.mark.parametrize("case", range(4))
def test_four(case):
    assert run(f"four{case}") > 1
"""
UNSTABLE = "UNSTABLE"


def second_run(folder: Path, *names: str) -> tuple[int, str, dict[str, int]]:
    """Return the exit status, the output, and how often each selected test ran."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p xdist.plugin\n")
    # `make test` starts it in this way. Other plugins would take longer to load than these tests.
    command = [sys.executable, "-m", "tests.support.second_run", "-n1", "--dist", "loadgroup"]
    ran = subprocess.run(
        [*command, "-k", " or ".join(names)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    runs = {file.stem: file.stat().st_size for file in folder.glob("*.runs")}
    return ran.returncode, ran.stdout + ran.stderr, runs


def test_a_test_that_fails_once_is_listed_and_the_run_passes(tmp_path: Path) -> None:
    status, printed, runs = second_run(tmp_path, "right", "once")
    assert runs == {"right": 1, "once": 2}, printed
    assert status == pytest.ExitCode.OK, printed
    _, _, listed = printed.partition(UNSTABLE)
    assert "test_it.py::test_once[a@b]\n" in listed and "test_right" not in listed, printed


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    status, printed, runs = second_run(tmp_path, "once", "always")
    assert runs == {"once": 2, "always": 2}, printed
    assert status == pytest.ExitCode.TESTS_FAILED, printed
    assert UNSTABLE not in printed


def test_more_failures_than_three_are_no_accident(tmp_path: Path) -> None:
    status, printed, runs = second_run(tmp_path, "four")
    assert runs == {f"four{case}": 1 for case in range(4)}, printed
    assert status == pytest.ExitCode.TESTS_FAILED, printed
    assert UNSTABLE not in printed
