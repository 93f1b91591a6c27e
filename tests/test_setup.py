"""`make` sets `.venv` up when needed, only then, and says in one line what to do when it cannot.

The story tests run the real Makefile in a small checkout of their own, where only setuptools is
to be installed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parlab import venv
from parlab.venv import LOG, ROOT, STAMP
from tests.conftest import wait_until

PARTS = ("Makefile", "pyproject.toml", "LICENSE", "README.md")
DEADLINE = 300


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as a user would: without the variables of a make that may be running this."""
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def start(folder: Path) -> subprocess.Popen[str]:
    """Start `make setup`, as a terminal does."""
    return subprocess.Popen(
        ["make", "setup"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    ours = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON")
    return {name: value for name, value in os.environ.items() if name not in ours}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose lock is one package, the one that builds it."""
    for name in PARTS:
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "parlab").mkdir()
    for name in ("__init__.py", "venv.py"):
        shutil.copy(ROOT / "parlab" / name, tmp_path / "parlab")
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    (only,) = [line for line in lines if line.startswith("setuptools==")]
    (tmp_path / "requirements.txt").write_text(only + "\n")
    (tmp_path / "requirements.in").write_text("setuptools\n")
    return tmp_path


def test_the_second_call_does_nothing() -> None:
    """In this checkout, whose `.venv` runs this test."""
    assert make(ROOT, "setup").returncode == 0
    before = STAMP.stat().st_mtime_ns, LOG.stat().st_size
    again = make(ROOT, "setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (STAMP.stat().st_mtime_ns, LOG.stat().st_size) == before


@pytest.mark.timeout(600)
def test_venv_is_made_once_then_refreshed_and_made_anew_when_it_broke(checkout: Path) -> None:
    folder = checkout / ".venv"
    left_over = folder / "left-over"

    at_once = [start(checkout), start(checkout)]
    told = [call.communicate(timeout=DEADLINE)[0] for call in at_once]
    assert [call.returncode for call in at_once] == [0, 0], told
    assert sum("Creating .venv" in text for text in told) == 1, told
    installed = subprocess.run(
        [folder / "bin" / "python", "-c", "import parlab; print(parlab.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert installed.stdout.strip() == str(checkout / "parlab" / "__init__.py"), installed.stderr

    left_over.touch()
    assert make(checkout, "setup").stdout == ""

    with open(checkout / "requirements.txt", "a") as lock:
        lock.write("# changed\n")
    refreshed = make(checkout, "setup")
    assert "Refreshing .venv" in refreshed.stdout, refreshed.stderr
    assert left_over.exists(), "refreshed in place"
    assert make(checkout, "setup").stdout == ""

    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to("gone-with-an-upgrade")
    assert "Creating .venv" in make(checkout, "setup").stdout
    assert not left_over.exists(), "made from nothing"


@pytest.mark.timeout(600)
def test_an_interrupted_call_leaves_no_stamp_and_the_next_one_finishes(checkout: Path) -> None:
    left_over = checkout / ".venv" / "left-over"
    call = start(checkout)
    wait_until((checkout / ".venv" / LOG.name).exists, DEADLINE, "pip runs")
    left_over.touch()
    os.killpg(call.pid, signal.SIGINT)  # Ctrl-C reaches all that the terminal started
    told, _ = call.communicate(timeout=DEADLINE)
    assert call.returncode != 0
    assert "the next make starts it again" in told
    assert not (checkout / ".venv" / STAMP.name).exists()

    again = make(checkout, "setup")
    assert again.returncode == 0, again.stderr
    assert "Creating .venv" in again.stdout
    assert not left_over.exists(), "nothing of what was half done is left"


@pytest.mark.timeout(600)
def test_what_pip_cannot_install_is_told(checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("./no-such-wheel.whl\n")
    ran = make(checkout, "setup")
    assert ran.returncode != 0
    assert "no-such-wheel.whl" in ran.stderr
    assert "make setup: pip failed" in ran.stderr
    assert not (checkout / ".venv" / STAMP.name).exists()


def test_a_python_that_does_not_fit_is_named(checkout: Path) -> None:
    ran = make(checkout, "setup", "PYTHON=false")
    assert ran.returncode != 0
    assert "no Python 3.11 to 3.14 under the name false" in ran.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's python3 does without the package python3-venv."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(venv.SetupError, match="apt-get install python3-venv"):
        venv._create("3.11")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_help_lists_every_target() -> None:
    told = make(ROOT, "help").stdout
    listed = {line.split()[0] for line in told.splitlines()[1:]}
    assert listed == targets()


@pytest.mark.parametrize("page", ["README.md", "labs/START.md", "book/index.md"])
def test_commands_that_the_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?:`|^    )make ([a-z]+)", text, re.MULTILINE))
    assert named <= targets()
    assert page != "README.md" or {"lab", "test", "book", "doctor"} <= named


def test_the_stamp_is_json_that_a_person_can_read() -> None:
    assert set(json.loads(STAMP.read_text())) == {"inputs", "folder", "python"}


def test_ci_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
