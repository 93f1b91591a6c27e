"""`make` sets up `.venv` only if needed, and says in one line what to do if it cannot.

These tests run the real Makefile in a small checkout, in which only uv and setuptools are
installed.
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

from parlab.runtime.paths import ROOT
from parlab.setup import venv
from parlab.setup.venv import STAMP
from tests.conftest import wait_until

PARTS = ("Makefile", "common.mk", "pyproject.toml", "LICENSE", "README.md")
DEADLINE = 300


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make like a user, without the variables of a make that may run this test."""
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def start(folder: Path) -> subprocess.Popen[str]:
    """Start `make setup` like a terminal does."""
    return subprocess.Popen(
        # A shell may have blocked Ctrl-C in background processes such as this one.
        ["env", "--default-signal=INT", "make", "setup"],
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


def checkout(folder: Path) -> Path:
    """Create a checkout whose lock has only uv, and the tools that build the package."""
    for name in PARTS:
        shutil.copy(ROOT / name, folder)
    modules = ("setup/pip_settings.py", "setup/venv.py", "runtime/paths.py")
    for name in ("__init__.py", "setup/__init__.py", "runtime/__init__.py", *modules):
        (folder / "parlab" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "parlab" / name, folder / "parlab" / name)
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    few = [line for line in lines if line.startswith(("setuptools==", "uv=="))]
    (folder / "requirements.txt").write_text("\n".join(few) + "\n")
    (folder / "requirements.in").write_text("setuptools\n")
    return folder


@pytest.fixture(scope="module")
def made_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A checkout that two calls set up at the same time, and the output of each call."""
    folder = checkout(tmp_path_factory.mktemp("course"))
    at_once = [start(folder), start(folder)]
    printed = [call.communicate(timeout=DEADLINE)[0] for call in at_once]
    assert [call.returncode for call in at_once] == [0, 0], printed
    return folder, printed


@pytest.fixture
def made(made_twice: tuple[Path, list[str]]) -> Path:
    """The same checkout, with a complete `.venv`."""
    folder, _ = made_twice
    assert make(folder, "setup").returncode == 0
    return folder


def test_the_second_call_does_nothing() -> None:
    """This uses the checkout whose `.venv` runs this test."""
    assert make(ROOT, "setup").returncode == 0
    before = STAMP.stat().st_mtime_ns
    again = make(ROOT, "setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert STAMP.stat().st_mtime_ns == before


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_of_two_simultaneous_calls_only_one_creates_the_environment(
    made_twice: tuple[Path, list[str]],
) -> None:
    folder, texts = made_twice
    assert sum("Creating .venv" in text for text in texts) == 1, texts
    installed = subprocess.run(
        [folder / ".venv" / "bin" / "python", "-c", "import parlab; print(parlab.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert installed.stdout.strip() == str(folder / "parlab" / "__init__.py"), installed.stderr
    assert list(folder.glob("parlab/setup/__pycache__/venv.*.pyc")), "modules are compiled"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_changed_lock_updates_the_environment_once(made: Path) -> None:
    left_over = made / ".venv" / "left-over"
    left_over.touch()
    with open(made / "requirements.txt", "a", encoding="utf-8") as lock:
        lock.write("# changed\n")
    refreshed = make(made, "setup")
    assert "Updating .venv" in refreshed.stdout, refreshed.stderr
    assert left_over.exists()
    assert make(made, "setup").stdout == ""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_broken_environment_is_created_anew_even_after_an_interruption(made: Path) -> None:
    folder = made / ".venv"
    left_over = folder / "left-over"
    left_over.touch()
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to("gone-with-an-upgrade")
    call = start(made)
    wait_until(lambda: not left_over.exists(), DEADLINE, "the broken one is gone")
    wait_until((folder / "bin" / "pip").exists, DEADLINE, "pip is there, and starts")
    left_over.touch()
    os.killpg(call.pid, signal.SIGINT)  # Ctrl-C reaches all processes of the terminal
    output, _ = call.communicate(timeout=DEADLINE)
    assert call.returncode != 0
    assert "the next make starts it again" in output
    assert not (folder / STAMP.name).exists()

    again = make(made, "setup")
    assert again.returncode == 0, again.stderr
    assert "Creating .venv" in again.stdout
    assert not left_over.exists(), "nothing of what was half done is left"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_package_that_cannot_be_installed_is_reported(made: Path) -> None:
    lock = made / "requirements.txt"
    before = lock.read_text()
    lock.write_text(f"{before}./no-such-wheel.whl\n")
    ran = make(made, "setup")
    lock.write_text(before)
    assert ran.returncode != 0
    assert "no-such-wheel.whl" in ran.stderr
    assert ran.stderr.splitlines()[-2].startswith(
        "make setup: some packages could not be installed"
    )
    assert not (made / ".venv" / STAMP.name).exists()


def test_a_python_that_does_not_fit_is_named(tmp_path: Path) -> None:
    ran = make(checkout(tmp_path), "setup", "PYTHON=false")
    assert ran.returncode != 0
    assert "no Python 3.11 to 3.14 named false" in ran.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_python_without_venv_is_used_only_if_there_is_no_other(tmp_path: Path) -> None:
    """The first `python` cannot import ensurepip. `make` prints the one that it would run."""
    folder = checkout(tmp_path)
    for name, refused in {"bare": "ensurepip", "complete": "nothing"}.items():
        script = folder / name
        script.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *{refused}*) exit 1;; *parlab.setup*) echo {name}; exit;; esac\n'
            f'exec {sys.executable} "$@"\n'
        )
        script.chmod(0o755)
    assert make(folder, "setup", "PYTHONS=./bare ./complete").stdout == "complete\n"
    assert make(folder, "setup", "PYTHONS=false ./bare").stdout == "bare\n"


def test_a_python_without_venv_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's python3 is like this without the package python3-venv."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(venv.SetupError, match="apt-get install python3-venv"):
        venv._create()


def test_modules_are_compiled_although_one_has_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parlab").mkdir()
    (tmp_path / "parlab" / "right.py").write_text("x = 1\n")
    (tmp_path / "parlab" / "wrong.py").write_text("x =\n")
    monkeypatch.setattr(venv, "ROOT", tmp_path)
    monkeypatch.setattr(venv, "PYTHON", Path(sys.executable))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    venv._compile_course()
    compiled = (tmp_path / "parlab" / "__pycache__").iterdir()
    assert [file.name.split(".")[0] for file in compiled] == ["right"]
    assert capfd.readouterr() == ("", "")


def targets() -> set[str]:
    text = "".join((ROOT / name).read_text() for name in ("Makefile", "common.mk"))
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def test_help_lists_every_target() -> None:
    printed = make(ROOT, "help").stdout
    listed = {line.split()[0] for line in printed.splitlines()[1:]}
    assert listed == targets()


@pytest.mark.parametrize("page", ["README.md", "labs/START.md", "book/index.md"])
def test_commands_that_the_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE))
    assert named <= targets()
    assert page != "README.md" or {"lab", "test", "book", "doctor"} <= named


def test_the_stamp_is_json_that_a_person_can_read() -> None:
    assert set(json.loads(STAMP.read_text())) == {"inputs", "folder"}


def test_ci_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == 'make "${1:-test}"'
    assert "export CI=true" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
