"""Examines folders, network names, the locale, the environment, and line endings."""

import locale
import os
import re
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from parlab.runtime import loopback
from parlab.runtime.environment import harmful
from parlab.runtime.paths import ROOT
from parlab.runtime.writable import why_not
from parlab.setup.doctor.finding import Finding
from parlab.setup.jupyterlab.folders import problem

GIB = 2**30
ENOUGH_DISK = 1  # GiB, for notebooks, the book, and temporary files
NAME_SECONDS = 5
# Files in which programs do not accept the line endings of Windows.
UNIX_FILES = ("Makefile", "common.mk", ".ci/packages", ".ci/run", "requirements.txt")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def home() -> Finding:
    found = os.path.expanduser("~")
    if reason := problem():
        return Finding("fail", found, reason)
    return Finding("ok", found, "JupyterLab can store its settings there.")


def temporary_folder() -> Finding:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding("fail", f"none ({error.strerror})", "Set TMPDIR to a folder with room.")
    if reason := why_not(Path(folder)):
        return Finding("fail", reason, "Make room there, or set TMPDIR to another folder.")
    wanted = os.environ.get("TMPDIR") or folder
    if os.path.abspath(wanted) != folder:
        found = f"{folder}, because TMPDIR={wanted} cannot be used"
        if os.path.isdir(wanted):  # Open MPI would use it, so `cluster.start()` refuses it
            return Finding("fail", found, "Unset TMPDIR, or set it to another folder.")
        return Finding("note", found, "The labs run.")
    return Finding("ok", folder, "Ranks can store their files there.")


def disk() -> Finding:
    free = shutil.disk_usage(ROOT).free / GIB
    if not os.access(ROOT / "labs", os.W_OK):
        meaning = "`parlab lab` copies the labs to ~/parlab and opens them there."
        return Finding("note", f"{ROOT / 'labs'} is read-only", meaning)
    if reason := why_not(ROOT):
        return Finding("note", reason, "Make room or allow writing there: labs cannot be saved.")
    if free < ENOUGH_DISK:
        return Finding("note", f"{free:.1f} GiB free", "Make room: the book and labs need 1 GiB.")
    return Finding("ok", f"{free:.0f} GiB free", "Enough for the book and the labs.")


def lo() -> Finding:
    if loopback.works():
        return Finding("ok", "127.0.0.1 answers", "Ranks of this machine reach each other.")
    return Finding("fail", "127.0.0.1 does not answer", f"No rank starts: {loopback.REMEDY}.")


def host_name() -> Finding:
    name, addresses = socket.gethostname(), []

    def resolve() -> None:
        try:
            addresses.append(socket.gethostbyname(name))
        except OSError:
            addresses.append("")

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(NAME_SECONDS)
    if addresses and addresses[0]:
        return Finding("ok", f"{name} is {addresses[0]}", "Other programs find this machine.")
    what = "cannot be resolved" if addresses else f"is not resolved within {NAME_SECONDS} s"
    return Finding(
        "note",
        f"{name} {what}",
        "The labs run. Start torchrun with `--local-addr 127.0.0.1`, or it waits for minutes.",
    )


def language() -> Finding:
    try:
        chosen = locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        name = next(n for n in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(n))
        return Finding("note", f"{name}={os.environ[name]} is not installed", "The labs use UTF-8.")
    encoding = locale.getencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return Finding("ok", f"{chosen} ({encoding})", "Text is in UTF-8.")
    return Finding(
        "note",
        f"{chosen} ({encoding})",
        "The course uses UTF-8 anyway. For your own scripts, set PYTHONUTF8=1.",
    )


def environment() -> Finding:
    found = [f"{name}={os.environ[name]}" for name in harmful()]
    others = [name for name in ("PYTHONPATH", "PYTHONHOME") if os.environ.get(name)]
    if found:
        effects = "; ".join(f"with {name}, {effect}" for name, effect in harmful().items())
        return Finding("note", ", ".join(found), f"`make lab` ignores this: {effects}.")
    if others:
        return Finding(
            "note",
            ", ".join(f"{name}={os.environ[name]}" for name in others),
            "Python looks there first. Unset it if a package is not the course's version.",
        )
    return Finding("ok", "no variable that changes the labs", "The labs run as they are tested.")


def proxies() -> Finding:
    variables = {name.lower(): value for name, value in os.environ.items()}
    # People paste this report into issues, so it must not show a password.
    shown = {name: re.sub(r"//[^/@]*@", "//…@", value) for name, value in variables.items()}
    found = [f"{name}={shown[name]}" for name in PROXIES if variables.get(name)]
    if not found:
        return Finding("ok", "none", "Downloads go straight to their servers.")
    around = variables.get("no_proxy", "")
    if "localhost" in around or around == "*":
        return Finding("ok", ", ".join(found), "no_proxy excludes this machine.")
    return Finding(
        "note",
        ", ".join(found),
        "If the browser cannot open JupyterLab, set no_proxy=localhost,127.0.0.1.",
    )


def line_endings() -> Finding:
    present = [name for name in UNIX_FILES if (ROOT / name).is_file()]
    wrong = [name for name in present if b"\r\n" in (ROOT / name).read_bytes()]
    if wrong:
        return Finding(
            "fail",
            f"those of Windows in {', '.join(wrong)}",
            f"Programs stop at them. Convert the files: `sed -i 's/\\r$//' {' '.join(wrong)}`.",
        )
    return Finding("ok", "those of Unix", "Scripts and Makefiles run.")
