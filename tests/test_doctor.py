"""`parlab doctor`, on this machine and on one where something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab import doctor
from parlab.doctor import machine, mpi, software
from parlab.mpirun import available_cores
from tests.conftest import rank_processes

PARLAB = Path(sys.executable).with_name("parlab")


def parlab(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PARLAB, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_this_machine_is_ready_and_every_line_says_what_follows() -> None:
    ran = parlab("doctor", "--json")
    assert ran.returncode == 0, ran.stdout
    told = json.loads(ran.stdout)
    assert told["ready"] is True
    findings = {finding["name"]: finding for finding in told["findings"]}
    assert list(findings) == list(doctor.EXAMINATIONS)
    assert all(finding["found"] and finding["meaning"] for finding in findings.values())
    assert all(finding["status"] in ("ok", "note") for finding in findings.values())
    assert findings["cores"]["found"].startswith(f"{available_cores()} ")
    assert "ULFM works" in findings["mpi"]["found"]


def test_it_reads_without_colour_and_ends_with_what_to_do() -> None:
    ran = parlab("doctor")
    assert "\x1b" not in ran.stdout
    assert ran.stdout.splitlines()[-1] == "Ready: `make lab` opens the labs."
    for name in doctor.EXAMINATIONS:
        assert f"  {name}: " in ran.stdout


def test_an_mpi_that_does_not_start_is_a_failure() -> None:
    """Open MPI is told to send messages by a means that does not exist."""
    ran = parlab("doctor", OMPI_MCA_pml="none-such")
    assert ran.returncode == 1
    assert "FAIL  mpi: 2 ranks did not start" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("Not ready: mend mpi as said above")


def test_ranks_that_give_no_answer_are_ended_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {process.pid for process in rank_processes()}
    monkeypatch.setattr(mpi, "_PROBE", "import signal; signal.pause()")
    monkeypatch.setattr(mpi, "DEADLINE", 0.2)
    finding = mpi.ranks()
    assert finding.status == "fail"
    assert "no answer within 0.2 s" in finding.found
    assert {process.pid for process in rank_processes()} <= before


def test_versions_that_drifted_from_the_lock_are_named(
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


def test_what_is_needed_and_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(machine, "CHROMIUM_NAMES", ("no-such-browser",))
    assert doctor.require(["chromium"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "apt-get install chromium" in said


def test_what_is_needed_and_there_is_no_line() -> None:
    ran = parlab("doctor", "--need", "chromium", "--need", "jupyterlab")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    ran = parlab("doctor", "--need", "chromuim")
    assert ran.returncode == 1
    assert "'chromuim'" in ran.stderr and "chromium" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("command", [[], ["lab"], ["doctor"], ["book"], ["notebooks"]])
def test_help_is_there_for_every_command(command: list[str]) -> None:
    ran = parlab(*command, "--help")
    assert ran.returncode == 0
    assert "sage:" in ran.stdout or "sage: " in ran.stdout
