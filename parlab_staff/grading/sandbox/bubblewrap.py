"""The command that starts a kernel in a sandbox of bubblewrap.

A process inside can use the system's programs, this Python, parlab (not its grader), and its own
folders in memory. It has no access to the network, the home folder, solutions, other submissions,
or processes outside. All processes inside end when the first of them ends.
"""

import os
import shutil
import sys
from pathlib import Path

from parlab.runtime.paths import ROOT
from parlab.setup import doctor

MIB = 2**20
# Folders in memory; their sizes are the disk space of a submission.
WRITABLE = {"/tmp": 512 * MIB, "/dev/shm": 1024 * MIB, "/home/learner": 512 * MIB}
HOME = "/home/learner"
SYSTEM = ("/usr",)
# These are folders on some distributions, and links into /usr on others.
ROOTS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32")
FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives", "/etc/localtime", "/etc/fonts")
# If the grader runs as root, writing here would change the machine, not the sandbox.
KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger")
GPUS = ("nvidia*", "dri", "kfd")
IDS = "1000"


class NoSandbox(ValueError):
    """This machine cannot create a sandbox. The text says what to do."""


def choose(wanted: str) -> str:
    """Return `bwrap` or `none` for the user's choice: `auto`, `bwrap`, or `none`.

    Raises NoSandbox if bubblewrap is missing or not allowed, because only the user may choose to
    run without it.
    """
    if wanted not in ("auto", "bwrap", "none"):
        raise ValueError(f"--sandbox {wanted}: must be auto, bwrap, or none")
    if wanted == "none":
        return wanted
    finding = doctor.examine("bubblewrap")
    if finding.status != "ok":
        raise NoSandbox(
            f"no sandbox. bubblewrap: {finding.found}. If it is missing, install it, such as with "
            "apt-get install bubblewrap. If it cannot start, `parlab doctor` reports why. With "
            "--sandbox none, a submission can read and change all that you can: use that only for "
            "code you trust."
        )
    return "bwrap"


def command(folder: Path, program: list[str]) -> list[str]:
    """Return a command for `program` in a sandbox. Only `folder` is writable on both sides."""
    python, venv = Path(sys.base_prefix), Path(sys.prefix)
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", IDS, "--gid", IDS]
    options += ["--die-with-parent", "--new-session", "--hostname", "localhost", "--clearenv"]
    for path in SYSTEM:
        options += ["--ro-bind", path, path]
    for path in ROOTS:
        options += _root(path)
    for path in FILES:
        options += ["--ro-bind-try", path, path]
    options += ["--proc", "/proc", "--dev", "/dev", *_devices()]
    for path in KERNEL_SETTINGS:
        options += ["--ro-bind-try", path, path]
    options += ["--ro-bind-try", "/sys/devices/system", "/sys/devices/system"]
    for path, size in WRITABLE.items():
        options += ["--size", str(size), "--tmpfs", path]
    for path in dict.fromkeys([python, venv, ROOT / "parlab"]):
        if not path.is_relative_to("/usr"):
            options += ["--ro-bind", str(path), str(path)]
    options += ["--bind", str(folder), str(folder)]
    # These options come last, so that the folders mounted below them stay writable.
    options += ["--remount-ro", "/dev", "--remount-ro", "/"]
    for name, value in environment(Path(HOME)).items():
        options += ["--setenv", name, value]
    return [shutil.which("bwrap") or "bwrap", *options, "--chdir", HOME, "--", *program]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a submission's kernel: only what Python needs."""
    kept = {name: os.environ[name] for name in ("TZ", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "USER": "learner",
        "LOGNAME": "learner",  # the sandbox has no user database that names user 1000
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), "/usr/bin", "/bin"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "IPP_NONINTERACTIVE": "1",  # no progress line in the outputs
    }


def _root(path: str) -> list[str]:
    if os.path.islink(path):
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind", path, path] if os.path.isdir(path) else []


def _devices() -> list[str]:
    """Return options for the devices of GPUs, which Linux has under these names."""
    found = [str(path) for pattern in GPUS for path in sorted(Path("/dev").glob(pattern))]
    if found and os.path.isdir("/sys"):
        return [o for path in found for o in ("--dev-bind", path, path)] + [
            "--ro-bind",
            "/sys",
            "/sys",
        ]
    return []
