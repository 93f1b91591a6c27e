"""Create or refresh `.venv`: what `make setup` runs, and every other target first.

Runs on the machine's own Python, before anything is installed, so it uses the standard library
alone. A second call reads one file and three digests: `.venv` is complete when its stamp says so.
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
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "parlab-setup.json"
LOG = VENV / "parlab-setup.log"
# A change of one of these makes `.venv` stale.
INPUTS = ("requirements.txt", "requirements.in", "pyproject.toml")
LARGE_DOWNLOAD = re.compile(r"Downloading (\S+) \((\d{2,}(?:\.\d+)? MB|\S+ GB)\)")
LAST_LINES = 15


class SetupError(Exception):
    """What the user has to do, in one line."""


def main() -> int:
    """Make `.venv` what requirements.txt says; 0 when it is. `--this-python` insists on one."""
    wanted = _wanted()
    insists = "--this-python" in sys.argv[1:]
    if _is_current(wanted, insists):
        return 0
    try:
        with _alone():
            if not _is_current(wanted, insists):  # another make may just have done it
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
    # The folder, since scripts in .venv/bin hold its path: after a move they no longer run.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"inputs": digest.hexdigest(), "folder": str(ROOT), "python": version}


def _stamp() -> dict[str, str]:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def _is_current(wanted: dict[str, str], insists: bool) -> bool:
    stamp = _stamp()
    return _is_usable(stamp, wanted, insists) and stamp["inputs"] == wanted["inputs"]


def _is_usable(stamp: dict[str, str], wanted: dict[str, str], insists: bool) -> bool:
    """Whether what is there can be refreshed, rather than be made anew."""
    return (
        stamp.get("folder") == wanted["folder"]
        and (stamp["python"] == wanted["python"] or not insists)
        and PYTHON.exists()  # a link that hangs when the machine's Python was replaced
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two makes at once: the second waits, and then finds everything done."""
    with open(ROOT / "requirements.txt", "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make is setting up .venv: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _set_up(wanted: dict[str, str], insists: bool) -> None:
    start = time.monotonic()
    stamp = _stamp()
    if _is_usable(stamp, wanted, insists):
        print("Refreshing .venv: what it is made from has changed", flush=True)
        STAMP.unlink()
    else:
        stamp = wanted
        _create(wanted["python"])
    _install()
    # The stamp comes last: without it, the next call starts again.
    STAMP.write_text(json.dumps(wanted | {"python": stamp["python"]}) + "\n")
    print(f".venv is ready, after {time.monotonic() - start:.0f} s", flush=True)


def _create(python: str) -> None:
    try:
        from ensurepip import version  # noqa: F401, Debian packages this module apart
    except ImportError:
        raise SetupError(
            f"this Python ({sys.executable}) comes without venv; on Debian or Ubuntu: "
            f"`apt-get install python3-venv` (or python{python}-venv), then run make again"
        ) from None
    print(f"Creating .venv with Python {sys.version.split()[0]}", flush=True)
    # From nothing: what an interrupted call left behind may be half a package.
    shutil.rmtree(VENV, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)])
    if made.returncode != 0:
        raise SetupError(f"`{sys.executable} -m venv` failed, as said above; mend that, then make")


def _install() -> None:
    lock = (ROOT / "requirements.txt").read_text()
    packages = len(re.findall(r"^[\w.-]+==", lock, re.MULTILINE))
    print(
        f"Installing {packages} packages: a minute or two; with CUDA some GB more to fetch",
        flush=True,
    )
    _pip("--requirement", "requirements.txt", packages=packages)
    # In place, so that what you edit is what runs. Its build tools are among the packages.
    _pip("--no-deps", "--no-build-isolation", "--editable", ".")


def _pip(*arguments: str, packages: int = 1) -> None:
    """`pip install`; its output goes to a log, of which the end is shown when it fails."""
    command = [str(PYTHON), "-m", "pip", "install", *arguments]
    environment = os.environ | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with (
        open(LOG, "a") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        assert process.stdout is not None
        last = _follow(process.stdout, log, packages)
    if process.returncode != 0:
        print("".join(last), end="", file=sys.stderr)
        raise SetupError(
            "pip failed, as said above (all of it: .venv/parlab-setup.log); mend that, "
            "most often the network or a full disk, then run make again"
        )


def _follow(lines: Iterable[str], log, packages: int) -> list[str]:
    """Tell how far pip is, while it writes `lines`; returns the last of them."""
    last: list[str] = []
    found = 0
    for line in lines:
        log.write(line)
        last = [*last[1 - LAST_LINES :], line]
        words = line.split()
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            found += 1
            _progress(f"  {found} of about {max(packages, found)}", every=found % 40 == 0)
        elif large := LARGE_DOWNLOAD.search(line):
            _progress(f"  downloading {large[1]}, {large[2]}", every=True)
        elif words[:2] == ["Installing", "collected"] and packages > 1:
            _progress(f"  unpacking {len(words) - 3}", every=True)
    return last


def _progress(text: str, every: bool) -> None:
    """On a terminal one line that changes; in a log only `every` so often a line."""
    if sys.stdout.isatty():
        print(f"\r{text:<70}", end="\n" if every else "", flush=True)
    elif every:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
