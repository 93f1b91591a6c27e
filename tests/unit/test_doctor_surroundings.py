"""`parlab doctor` finds problems of folders, networks, and settings, which these tests create."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from parlab.setup.doctor import surroundings

PARLAB = Path(sys.executable).with_name("parlab")
# Namespaces that act as another machine, with its own names, mounts, and interfaces, which are
# down.
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--uts", "--mount", "sh", "-ec"]
may_unshare = subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
isolated = pytest.mark.skipif(not may_unshare, reason="this process may not make namespaces")


def on_own_machine(first: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command on such a machine, after `first`, a shell command, has changed it."""
    return subprocess.run(
        [*UNSHARE, f'{first}\nexec "$@"', "sh", *command],
        env=os.environ | variables,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def finding(name: str, first: str = "true", **variables: str) -> dict[str, str]:
    code = (
        "import json; from parlab.setup.doctor import surroundings; "
        f"print(json.dumps(vars(surroundings.{name}())))"
    )
    if first == "true":
        command, env = [sys.executable, "-c", code], os.environ | variables
        ran = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=60)
    else:
        ran = on_own_machine(first, sys.executable, "-c", code, **variables)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@isolated
def test_a_full_home_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """The doctor reports it, and so does `parlab lab`, before JupyterLab fails with a traceback."""
    full = f"mount -t tmpfs -o size=16k none {tmp_path}"
    found = finding("home", full, HOME=str(tmp_path))
    assert found["status"] == "fail"
    assert f"{tmp_path}: No space left on device" in found["meaning"]
    ran = on_own_machine(full, str(PARLAB), "lab", "--version", HOME=str(tmp_path))
    assert ran.returncode == 1
    assert ran.stderr.startswith("parlab: JupyterLab cannot write its settings (")
    assert ran.stderr.endswith("HOME=$(mktemp -d) make lab`\n") and "Traceback" not in ran.stderr


@isolated
def test_a_temporary_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    found = finding(
        "temporary_folder", f"mount -t tmpfs -o ro none {tmp_path}", TMPDIR=str(tmp_path)
    )
    assert found["status"] == "fail" and f"TMPDIR={tmp_path} cannot be used" in found["found"]
    found = finding("temporary_folder", "true", TMPDIR=str(tmp_path / "missing"))
    assert found["status"] == "note" and "missing cannot be used" in found["found"]
    found = finding("temporary_folder", f"mount -t tmpfs -o size=16k none {tmp_path}",
                    TMPDIR=str(tmp_path))  # fmt: skip
    assert found == {
        "status": "fail",
        "found": f"{tmp_path}: No space left on device",
        "meaning": "Make room there, or set TMPDIR to another folder.",
    }


@isolated
def test_a_loopback_that_is_down_stops_the_start_with_a_remedy() -> None:
    found = finding("lo", "true # lo is down")
    assert found["status"] == "fail" and "`sudo ip link set lo up`" in found["meaning"]
    code = "from parlab import cluster; cluster.start(2)"
    ran = on_own_machine("true", sys.executable, "-c", code)
    assert "ClusterError: no ranks can start, because the loopback interface" in ran.stderr
    assert finding("lo", "ip link set lo up")["status"] == "ok"


@isolated
def test_a_host_name_that_is_not_resolved_is_a_note() -> None:
    found = finding("host_name", "hostname no-such-host")
    assert found["status"] == "note" and found["found"].startswith("no-such-host ")
    assert "`--local-addr 127.0.0.1`" in found["meaning"]


def test_a_locale_without_utf8_is_a_note() -> None:
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = finding("language", **ascii_locale)
    assert (found["status"], found["found"]) == ("note", "C (ANSI_X3.4-1968)")
    found = finding("language", LC_ALL="xx_XX.UTF-8")
    assert (found["status"], found["found"]) == ("note", "LC_ALL=xx_XX.UTF-8 is not installed")


def test_variables_that_change_labs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*surroundings.harmful(), "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    assert surroundings.environment().status == "ok"
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert surroundings.environment().found == "PYTHONPATH=/elsewhere"
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    found = surroundings.environment()
    assert (found.status, found.found) == ("note", "MPLBACKEND=Agg, PYTHONWARNINGS=error")
    assert "with MPLBACKEND, matplotlib would not show its pictures" in found.meaning


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, "ok"),
        ({"HTTPS_PROXY": "http://p:3128"}, "note"),
        ({"http_proxy": "http://p:3128", "no_proxy": "localhost,127.0.0.1"}, "ok"),
        ({"ALL_PROXY": "http://p:3128", "NO_PROXY": "*"}, "ok"),
    ],
)
def test_proxies(variables: dict, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert surroundings.proxies().status == status


def test_the_password_of_a_proxy_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://alice:secret@proxy:3128")
    assert "https_proxy=http://…@proxy:3128" in surroundings.proxies().found


def test_a_slash_at_the_end_of_tmpdir_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/")
    assert surroundings.temporary_folder().status == "ok"


def test_line_endings_of_windows_are_converted_by_the_command_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_bytes(b"all:\r\n\ttrue\r\n")
    (tmp_path / "common.mk").write_bytes(b"help:\n")
    found = surroundings.line_endings()
    assert (found.status, found.found) == ("fail", "those of Windows in Makefile")
    subprocess.run(["sh", "-c", found.meaning.split("`")[1]], cwd=tmp_path, check=True)
    assert surroundings.line_endings().status == "ok"


def test_git_gives_scripts_the_line_endings_of_unix() -> None:
    files = [name for name in surroundings.UNIX_FILES if (surroundings.ROOT / name).is_file()]
    command = ["git", "check-attr", "eol", "--", *files]
    ran = subprocess.run(command, cwd=surroundings.ROOT, capture_output=True, encoding="utf-8")
    assert ran.stdout.splitlines() == [f"{name}: eol: lf" for name in files]
