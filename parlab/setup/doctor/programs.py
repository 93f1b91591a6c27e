"""Examines programs that pip does not install: a browser, bubblewrap, Slurm, ssh."""

import glob
import os
import shutil
import subprocess
from pathlib import Path

from parlab.setup.doctor.finding import Finding

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The paths on macOS, and of Playwright's download.
CHROMIUM_PATHS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "~/.cache/ms-playwright/chromium-*/chrome-linux*/chrome",
)
SANDBOX = (
    "Graders can run submissions in a sandbox. It checks their memory several times a second, "
    "without control groups."
)
# The services of Slurm, which tests start: Debian's munge and slurm-wlm.
SLURM_DAEMONS = ("munged", "slurmctld", "slurmd")
# The command that installs a package, by the package manager's program.
PACKAGE_MANAGERS = {
    "apt-get": "apt-get install", "dnf": "dnf install", "zypper": "zypper install",
    "pacman": "pacman -S", "apk": "apk add", "brew": "brew install",
}  # fmt: skip
SECONDS = 60  # the time limit of a program; on a busy machine, a browser takes long to start
SYSCTL = Path("/proc/sys")


def install_command(package: str) -> str:
    """Return the command that installs a system package, or plain words if it is unknown."""
    manager = next((name for name in PACKAGE_MANAGERS if shutil.which(name)), None)
    if manager is None:
        return f"install {package}"
    sudo = "" if os.geteuid() == 0 or manager == "brew" else "sudo "
    return f"`{sudo}{PACKAGE_MANAGERS[manager]} {package}`"


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome that starts, or None if there is none."""
    elsewhere = [path for place in CHROMIUM_PATHS for path in glob.glob(os.path.expanduser(place))]
    for path in filter(None, map(shutil.which, [*CHROMIUM_NAMES, *elsewhere])):
        # Without the snap, Ubuntu's chromium is a script that only prints an error.
        if _ran([path, "--version"]).returncode == 0:
            return path
    return None


def chromium() -> Finding:
    path = find_chromium()
    if path:
        return Finding(
            "ok",
            path,
            "`make test` opens the book and JupyterLab in it, and `make pdf` prints the book.",
        )
    return Finding(
        "note",
        "not found",
        f"Only `make test` and `make pdf` need Chrome or Chromium: {install_command('chromium')}.",
    )


def find_daemon(name: str) -> str | None:
    """Return the path of a service, whose folder is often not in a user's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def slurm() -> Finding:
    for_labs = "Labs can run on its nodes: `parlab profile slurm`."
    own = [name for name in SLURM_DAEMONS if find_daemon(name) is None]
    if shutil.which("sbatch") is None:
        command = install_command("munge slurm-wlm")
        return Finding(
            "note", "not found", f"`make test-all` needs Slurm, but the labs do not: {command}."
        )
    if own:
        return Finding(
            "note",
            f"sbatch, but no {', '.join(own)}",
            f"{for_labs} `make test-all` needs all services.",
        )
    return Finding(
        "ok", "sbatch and its services", f"{for_labs} `make test-all` starts its own Slurm."
    )


def ssh() -> Finding:
    server = f"`make test-all` needs sshd: {install_command('openssh-server')}."
    if shutil.which("ssh") is None:
        return Finding("note", "not found", f"The labs need none; {server}")
    for_labs = "Labs can run on machines that it reaches: `parlab profile ssh`."
    if find_daemon("sshd") is None:
        return Finding("note", "ssh, but no sshd", f"{for_labs} {server}")
    return Finding("ok", "ssh and sshd", f"{for_labs} `make test-all` logs in to this machine.")


def bubblewrap() -> Finding:
    program = shutil.which("bwrap")
    if program is None:
        command = install_command("bubblewrap")
        return Finding("note", "not found", f"Graders need it, but the labs do not: {command}.")
    # The options of the grader's sandbox. bubblewrap has had --disable-userns since version 0.8.
    alone = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    alone += ["--ro-bind", "/", "/", "--size", "4096", "--tmpfs", "/tmp", "true"]
    ran = _ran(alone)
    if ran.returncode == 0:
        return Finding("ok", program, SANDBOX)
    message = ran.stderr.strip() or f"it ended with {ran.returncode}"
    return Finding(
        "note",
        f"{program} cannot make a sandbox ({message})",
        f"Only graders need it; the labs run without it. {what_forbids_sandboxes(message)}",
    )


def what_forbids_sandboxes(message: str) -> str:
    """Return why bubblewrap does not start here, if this is known, and what to do."""
    kernel = SYSCTL / "kernel"
    if "nknown option" in message:
        return "It is too old: 0.8 or newer is needed."
    if os.geteuid() and _setting(kernel / "apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids user namespaces, as on Ubuntu. "
            "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` allows them to every "
            "program."
        )
    if os.geteuid() and _setting(kernel / "unprivileged_userns_clone") == "0":
        return "`sudo sysctl kernel.unprivileged_userns_clone=1` allows it to every program."
    if _setting(SYSCTL / "user" / "max_user_namespaces") == "0":
        return "`sudo sysctl user.max_user_namespaces=10000` allows it to every program."
    return "If this is a container, start it with --privileged, or grade outside of it."


def _setting(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # this kernel has no such setting
        return ""


def _ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. If it cannot start or takes too long, return a failure."""
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
