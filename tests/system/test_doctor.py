"""`parlab doctor`, on this machine and on one where something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from parlab.mpirun import available_cores
from parlab.setup import doctor
from parlab.setup.doctor import mpi, programs, software

PARLAB = Path(sys.executable).with_name("parlab")


def parlab(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PARLAB, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_this_machine_is_ready_and_every_line_says_what_it_means() -> None:
    ran = parlab("doctor", "--json")
    assert ran.returncode == 0, ran.stdout
    report = json.loads(ran.stdout)
    assert report["ready"] is True
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert list(findings) == list(doctor.EXAMINATIONS)
    assert all(finding["found"] and finding["meaning"] for finding in findings.values())
    assert all(finding["status"] in ("ok", "note") for finding in findings.values())
    assert findings["cores"]["found"].startswith(f"{available_cores()} ")
    assert "ULFM works" in findings["mpi"]["found"]


def test_the_report_needs_no_color_and_ends_with_what_to_do() -> None:
    ran = parlab("doctor")
    assert "\x1b" not in ran.stdout
    assert ran.stdout.splitlines()[-1] == "Ready: `make lab` opens the labs."
    for name in doctor.EXAMINATIONS:
        assert f"  {name}: " in ran.stdout


def test_an_mpi_that_does_not_start_is_a_failure() -> None:
    """Open MPI is configured to send messages with a component that does not exist."""
    ran = parlab("doctor", OMPI_MCA_pml="none-such")
    assert ran.returncode == 1
    assert "FAIL  mpi: 2 ranks did not start" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("Not ready: fix mpi as described above")


def test_jupyterlab_does_not_inherit_harmful_variables() -> None:
    """With PYTHONINSPECT, Python would show how JupyterLab ended, and wait for input."""
    ran = parlab("lab", "--version", PYTHONINSPECT="1", MPLBACKEND="Agg")
    assert "parlab lab: ignoring MPLBACKEND=Agg, because matplotlib would not show" in ran.stderr
    assert "SystemExit" not in ran.stderr and ran.returncode == 0


def ours() -> set[int]:
    """Return all descendants of this process."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_ranks_that_do_not_answer_are_ended_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ours()
    monkeypatch.setattr(mpi, "_PROBE", "import signal; signal.pause()")
    monkeypatch.setattr(mpi, "DEADLINE", 0.2)
    finding = mpi.ranks()
    assert finding.status == "fail"
    assert "did not answer within 0.2 s" in finding.found
    assert ours() <= before


def test_versions_that_differ_from_the_lock_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "ROOT", tmp_path)
    lock = tmp_path / "requirements.txt"

    lock.write_text("torch==2.13.0  # a local build of it counts\nnumpy==1.0\n")
    drifted = software.packages()
    assert drifted.status == "note"
    assert drifted.found.startswith("1 of 2 differ: numpy ")

    lock.write_text("no-package-of-this-name==1.0\nappnope==1.0 ; sys_platform == 'plan9'\n")
    missing = software.packages()
    assert missing.status == "fail"
    assert missing.found == "1 of 1 missing: no-package-of-this-name"


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the home, and the only folder in PATH."""
    for name in ("PATH", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, code: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


def test_missing_programs_are_reported_with_the_command_that_installs_them(only: Path) -> None:
    # Like on Ubuntu without snaps, a script is installed instead of the browser.
    program(only, "chromium-browser", "echo 'requires the chromium snap' >&2; exit 1")
    program(only, "pacman", "exit 1")
    sudo = "sudo " if os.geteuid() else ""
    for name in ("chromium", "bubblewrap"):
        found = doctor.examine(name)
        assert (found.status, found.found) == ("note", "not found")
        assert f"`{sudo}pacman -S {name}`" in found.meaning


@pytest.mark.parametrize(
    "name", ["google-chrome", ".cache/ms-playwright/chromium-9/chrome-linux/chrome"]
)
def test_any_chromium_is_found(only: Path, name: str) -> None:
    (only / name).parent.mkdir(parents=True, exist_ok=True)
    browser = program(only, name, "echo Chrome 150")
    assert doctor.examine("chromium").found == str(browser)


@pytest.mark.needs("bubblewrap")
def test_bubblewrap_that_cannot_start_is_reported_with_what_allows_it() -> None:
    """In a user namespace that allows no other one, bubblewrap is installed but cannot start."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    examine = "from parlab.setup import doctor; print(doctor.examine('bubblewrap'))"
    ran = subprocess.run(
        [*command, sys.executable, "-c", examine], capture_output=True, text=True, timeout=200
    )
    assert "status='note'" in ran.stdout
    assert "cannot make a sandbox" in ran.stdout
    assert "sudo sysctl user.max_user_namespaces=" in ran.stdout


@pytest.mark.parametrize(
    "setting, value, advice",
    [
        ("apparmor_restrict_unprivileged_userns", "1", "AppArmor forbids user namespaces"),
        ("apparmor_restrict_unprivileged_userns", "0", "start it with --privileged"),
        ("unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ],
)
def test_settings_of_the_system_explain_a_missing_sandbox(
    setting: str, value: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / setting).write_text(f"{value}\n")
    monkeypatch.setattr(programs, "SYSCTL", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert advice in programs.what_forbids_sandboxes("setting up uid map: Permission denied")


@pytest.mark.parametrize("command", [[], ["lab"], ["doctor"], ["book"], ["notebooks"]])
def test_every_command_has_help(command: list[str]) -> None:
    ran = parlab(*command, "--help")
    assert ran.returncode == 0
    assert "sage:" in ran.stdout or "sage: " in ran.stdout
