"""`make test` installs missing packages, or skips their tests and says so."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT

PACKAGES = ROOT / ".ci" / "packages"
# The programs that the script itself uses. A test adds all others.
TOOLS = ("sh", "env", "grep", "tr", "cat")
EVERYTHING = (
    "make",
    "python3",
    "git",
    "g++",
    "node",
    "chromium",
    "bwrap",
    "ssh",
)
UBUNTU = platform.freedesktop_os_release()["ID"] == "ubuntu"
BROWSER = "chromium-browser" if UBUNTU else "chromium"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs for PATH, like on a bare Debian. Its apt-get records its arguments."""
    for name in TOOLS:
        there = subprocess.run(["which", name], capture_output=True, text=True, check=True)
        (tmp_path / name).symlink_to(there.stdout.strip())
    program(tmp_path, "apt-get", 'echo "$@" >> "$NOTES"')
    program(tmp_path, "id", "echo 0")
    return tmp_path


def program(folder: Path, name: str, code: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


def install(machine: Path, *target: str) -> tuple[str, list[list[str]]]:
    """Return the output of `.ci/packages`, and the packages of each `apt-get install`."""
    notes = machine / "notes"
    ran = subprocess.run(
        [PACKAGES, *target],
        env={"PATH": str(machine), "NOTES": str(notes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout
    calls = notes.read_text().splitlines() if notes.exists() else []
    installs = [call.partition(" install ")[2].split() for call in calls if " install " in call]
    return ran.stdout, [[word for word in words if word[0] != "-"] for words in installs]


def test_root_installs_missing_packages_and_says_so(machine: Path) -> None:
    program(machine, "make")
    program(machine, "bwrap")
    printed, installed = install(machine)
    missing = ["python3", "python3-venv", "git", "g++", "nodejs", BROWSER]
    missing += ["openssh-client"]
    assert installed == [missing]
    assert f"Installing {' '.join(missing)}\n" in printed


def test_nothing_is_installed_if_nothing_is_missing(machine: Path) -> None:
    for name in EVERYTHING:
        program(machine, name)
    assert install(machine) == ("", [])


def test_firefox_and_slurm_are_installed_only_for_all_tests(machine: Path) -> None:
    for name in EVERYTHING:
        program(machine, name)
    assert install(machine, "test") == ("", [])
    packages = ["firefox" if UBUNTU else "firefox-esr", "slurm-wlm", "munge"]
    assert install(machine, "test-all")[1] == [packages]


def test_a_browser_that_does_not_start_is_missing(machine: Path) -> None:
    for name in EVERYTHING:
        program(machine, name)
    program(machine, "chromium", "exit 1")
    assert install(machine)[1] == [[BROWSER]]
    program(machine, "google-chrome")
    assert install(machine)[1] == [[BROWSER]], "the first call's"


def test_a_sudo_without_password_is_used(machine: Path) -> None:
    program(machine, "id", "echo 1000")
    program(machine, "sudo", '[ "$1" = -n ] && shift && exec "$@"')
    program(machine, "true")
    assert "bubblewrap" in install(machine)[1][0]


@pytest.mark.parametrize("sudo", ["exit 1", None])
def test_without_root_nothing_is_installed_and_it_says_so(machine: Path, sudo: str | None) -> None:
    program(machine, "id", "echo 1000")
    if sudo:
        program(machine, "sudo", sudo)
    printed, installed = install(machine)
    assert installed == []
    assert printed.startswith("Not installed, since only root may: ") and "chromium" in printed


def test_nothing_is_installed_on_other_systems(machine: Path) -> None:
    (machine / "apt-get").unlink()
    assert install(machine) == ("", [])


def test_packages_that_cannot_be_installed_do_not_stop_the_tests(machine: Path) -> None:
    program(machine, "apt-get", "echo no network; exit 100")
    printed, _ = install(machine)
    assert "no network" in printed
    assert printed.splitlines()[-1].startswith("Not all of these could be installed")


def a_browser_test(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a test that needs a browser, and one that does not, on a machine without a browser."""
    tests = ("book/browser/test_start_page.py::test_settings_of_the_course_reach_jupyterlab",)
    tests += ("unit/test_units.py",)
    environment = os.environ | {"PATH": str(folder), "HOME": str(folder)} | variables
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_skipped_tests_are_listed_last_with_what_they_need(machine: Path) -> None:
    ran = a_browser_test(machine, CI="")
    assert ran.returncode == 0, ran.stdout
    last = ran.stdout.splitlines()[-1]
    assert last.startswith("1 test left out. chromium: not found.")
    assert "apt-get install chromium`" in last
    assert " passed, 1 skipped" in ran.stdout


def test_in_ci_a_skipped_test_is_a_failure(machine: Path) -> None:
    ran = a_browser_test(machine, CI="true")
    assert ran.returncode == 1, ran.stdout
    assert "CI=true, and this was not tested: chromium: not found." in ran.stdout
