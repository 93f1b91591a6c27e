"""The versions: one lock, which machines with and without GPUs can install."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from parlab.runtime.paths import ROOT

BIN = Path(sys.executable).parent
LOCK = ROOT / "requirements.txt"
# Debian 12 has 3.11.2, and a package may require more than 3.11.0.
PYTHONS = ["3.11.2", "3.12", "3.13", "3.14"]
NO_ANSWER = ("error sending request", "dns error", "timed out", "Failed to fetch")


def requirements(path: Path) -> dict[str, Requirement]:
    """Return the requirements in a file by name, without comments."""
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    found = [Requirement(line) for line in lines if line]
    assert len({r.name for r in found}) == len(found), f"{path.name} names a package twice"
    return {r.name: r for r in found}


def resolved_for_a_gpu(lock: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Resolve for a Linux machine with GPUs, where uv does not use pip's local CPU wheels."""
    return asking_the_registry(
        *(str(BIN / "uv"), "pip", "compile", "--no-config", "--no-header", "--no-annotate"),
        *("--python-version", python, "--python-platform", "x86_64-manylinux_2_28"),
        *("--only-binary", ":all:", "--no-python-downloads", "--system-certs", str(lock)),
    )


def asking_the_registry(*command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command that uses uv, with the registry from which pip gets its packages here."""
    environment = dict(os.environ)
    if index := configured_index():
        environment.setdefault("UV_DEFAULT_INDEX", index)
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    if ran.returncode and any(words in ran.stderr for words in NO_ANSWER):
        pytest.skip("The package registry was not reached. Connect to the internet.")
    return ran


def configured_index() -> str:
    """Return the index in pip's settings; "" if they have only the usual one."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    ran = subprocess.run(command, capture_output=True, text=True)
    return os.environ.get("PIP_INDEX_URL") or ran.stdout.strip()


def test_the_lock_is_exact_and_fits_both_kinds_of_machine() -> None:
    lock = requirements(LOCK)
    for name, requirement in lock.items():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), f"{name} is not exact"
        assert not name.startswith(("nvidia-", "cuda-")), f"{name}: only torch's CUDA build has it"
    assert str(lock["torch"].specifier) == "==2.13.0"
    assert str(lock["triton"].specifier) == "==3.7.1"
    assert str(lock["triton"].marker) == 'sys_platform == "linux"'


def test_the_lock_is_what_make_lock_writes(tmp_path: Path) -> None:
    for name in ("Makefile", "common.mk", "requirements.in", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    # -o: do not create its own .venv
    ran = asking_the_registry("make", "-o", "setup", "lock", f"BIN={BIN}", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "requirements.txt").read_text() == LOCK.read_text(), "run `make lock`"


@pytest.mark.parametrize(
    "python", [PYTHONS[0], *(pytest.param(p, marks=pytest.mark.nightly) for p in PYTHONS[1:])]
)
def test_the_lock_resolves_for_a_gpu_machine(python: str) -> None:
    ran = resolved_for_a_gpu(LOCK, python)
    assert ran.returncode == 0, ran.stderr
    installed = ran.stdout.split()
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(installed)
    assert any(package.startswith("nvidia-nccl-") for package in installed), "not the CUDA build"


def test_a_triton_that_the_cuda_build_refuses_is_noticed(tmp_path: Path) -> None:
    changed = tmp_path / "requirements.txt"
    changed.write_text(LOCK.read_text().replace("triton==3.7.1", "triton==3.7.0"))
    ran = resolved_for_a_gpu(changed, "3.12")
    assert ran.returncode != 0
    assert "triton" in ran.stderr


def test_the_installed_packages_are_compatible() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("name", ["environment.yml", ".binder/environment.yml"])
def test_conda_and_binder_get_the_same_versions(name: str) -> None:
    """environment.yml installs the lock, and does not contain other versions that could differ."""
    dependencies = yaml.safe_load((ROOT / name).read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    installed = [line.split() for line in pip if not line.startswith("--extra-index-url ")]
    assert [option for option, _ in installed] == ["-r", "-e"]
    paths = [(ROOT / name).parent / path for _, path in installed]  # conda runs pip in this folder
    assert [path.resolve() for path in paths] == [LOCK, ROOT]
    others = [entry for entry in dependencies if isinstance(entry, str)]
    assert sorted(re.split("[=<>]", entry)[0] for entry in others) == ["pip", "python"]
    (python,) = [entry.removeprefix("python=") for entry in others if entry.startswith("python")]
    assert any(version == python or version.startswith(f"{python}.") for version in PYTHONS)
