"""Creates or updates `.venv`. `make setup` runs this, and all other targets run it first.

It runs on the machine's own Python, before anything is installed, so it uses only the standard
library. pip, which comes with Python, installs uv, and uv installs everything else. A second call
only compares the stamp in `.venv` with the course's folder and a digest of three files.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from parlab.runtime.paths import ROOT
from parlab.setup import pip_settings

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "parlab-setup.json"
# If one of these files changes, `.venv` is out of date.
INPUTS = ("requirements.txt", "requirements.in", "pyproject.toml")


class SetupError(Exception):
    """The setup failed. The text says in one line what to do."""


def main() -> int:
    """Make `.venv` match requirements.txt. Return 0 on success.

    With `--this-python`, `.venv` must use the Python that runs this.
    """
    wanted = _wanted()
    insists = "--this-python" in sys.argv[1:]
    if _is_current(wanted, insists):
        return 0
    try:
        with _alone():
            if not _is_current(wanted, insists):  # another make may have finished it just now
                _set_up(wanted, insists)
    except SetupError as error:
        print(f"make setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmake setup: stopped; the next make starts it again", file=sys.stderr)
        return 130
    return 0


def _wanted() -> dict[str, str]:
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    # Include the folder, because scripts in .venv/bin contain its path, and break if it moves.
    return {"inputs": digest.hexdigest(), "folder": str(ROOT)}


def _stamp() -> dict[str, str]:
    try:
        return json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _is_current(wanted: dict[str, str], insists: bool) -> bool:
    stamp = _stamp()
    return _is_usable(stamp, wanted, insists) and stamp == wanted


def _is_usable(stamp: dict[str, str], wanted: dict[str, str], insists: bool) -> bool:
    """Return True if the existing `.venv` can be updated, instead of creating a new one."""
    return (
        stamp.get("folder") == wanted["folder"]
        and PYTHON.exists()  # a link, which is broken if the machine's Python was replaced
        and (not insists or PYTHON.resolve() == Path(sys.executable).resolve())
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let only one make run at a time. A second one waits, and then has nothing left to do."""
    try:
        lock = open(ROOT / "requirements.txt", "r+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise SetupError(
            f"cannot write in {ROOT} ({error.strerror}), and its .venv is missing, out of date, or "
            "was made for another folder. Ask its owner to run `make setup`, or copy the course"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make is setting up .venv: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # some network file systems have no locks
        yield


def _set_up(wanted: dict[str, str], insists: bool) -> None:
    start = time.monotonic()
    if _is_usable(_stamp(), wanted, insists):
        print("Updating .venv, because its requirements have changed", flush=True)
        STAMP.unlink()
    else:
        _create()
    _install()
    # Write the stamp last, so that the next call starts again if this one was interrupted.
    STAMP.write_text(json.dumps(wanted) + "\n", encoding="utf-8")
    print(f".venv is ready, after {time.monotonic() - start:.0f} s", flush=True)


def _create() -> None:
    try:
        from ensurepip import version  # noqa: F401, Debian packages this module separately
    except ImportError:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"this Python ({sys.executable}) comes without venv; on Debian or Ubuntu: "
            f"`apt-get install python3-venv` (or python{python}-venv), then run make again"
        ) from None
    print(f"Creating .venv with Python {sys.version.split()[0]}", flush=True)
    # Start from nothing, because an interrupted call may have left half of a package.
    shutil.rmtree(VENV, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)])
    if made.returncode != 0:
        raise SetupError(
            f"`{sys.executable} -m venv` failed (see above). Fix this, and then run make again"
        )


def _install() -> None:
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    print(
        "Installing packages. This takes a minute or two; with CUDA, some GB more are downloaded",
        flush=True,
    )
    pip = [str(PYTHON), "-m", "pip"]
    options, variables = pip_settings.for_uv(pip_settings.read(pip))
    # pip does not contact a registry if the locked version is already installed.
    exact = re.search(r"^uv==[\w.]+", lock, re.MULTILINE)
    assert exact, "requirements.txt names the version of uv"
    _run(*pip, "install", "--quiet", exact[0], PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    uv = [str(PYTHON.with_name("uv")), "pip", "install", "--python", str(PYTHON)]
    # Compile now, because otherwise all first ranks would do it at the same time.
    _run(*uv, *options, "--compile-bytecode", "--requirement", "requirements.txt", **variables)
    # Install this package in place, so that your edits take effect. Its build tools are installed.
    install_here = ("--no-deps", "--no-build-isolation", "--editable", ".")
    _run(*uv, *options, *install_here, **variables)
    _compile_course()


def _compile_course() -> None:
    """Store the course's modules as bytecode. In many containers, processes cannot do so later.

    An error is not reported here. If it is in a module's syntax, importing that module shows it.
    """
    folders = [str(ROOT / name) for name in ("parlab", "parlab_staff")]
    # The first -q suppresses file names, and the second one suppresses errors.
    subprocess.run([str(PYTHON), "-m", "compileall", "-q", "-q", "-j", "0", *folders])


def _run(*command: str, **variables: str) -> None:
    """Run a command that prints its own progress and errors."""
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | variables, stdin=subprocess.DEVNULL)
    if ran.returncode != 0:
        raise SetupError(
            "some packages could not be installed (see above). Fix this (it is often the network "
            "or a full disk), and then run make again"
        )


if __name__ == "__main__":
    sys.exit(main())
