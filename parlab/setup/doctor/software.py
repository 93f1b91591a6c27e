"""Examines installed packages: versions in requirements.txt, torch's backends, JupyterLab."""

import importlib.metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from parlab.runtime.paths import ROOT
from parlab.setup.doctor.finding import Finding
from parlab.setup.venv import VENV

SHOWN = 5  # the largest number of names in a finding


def python() -> Finding:
    place = ".venv" if Path(sys.prefix) == VENV else sys.prefix
    found = f"{platform.python_version()} in {place}, on {_system()}"
    if sys.platform == "win32":
        return Finding("fail", found, "Open MPI does not run on Windows: use WSL 2.")
    if sys.platform != "linux":
        return Finding("note", found, "The course is tested on Linux.")
    return Finding("ok", found, "The labs' kernels and ranks run on this Python.")


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name} ({platform.machine()})"


def packages() -> Finding:
    lock = ROOT / "requirements.txt"
    if not lock.exists():
        return Finding("note", "no requirements.txt here", "Versions are not compared.")
    missing, other, count = [], [], 0
    for requirement in locked(lock.read_text(encoding="utf-8")):
        count += 1
        try:
            version = Version(importlib.metadata.version(requirement.name))
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        # "2.13.0+cpu" is a build of 2.13.0.
        if not requirement.specifier.contains(version.public, prereleases=True):
            other.append(f"{requirement.name} {version} for {requirement.specifier}")
    refresh = "Remove .venv, and run `make setup`. In conda: `pip install -r requirements.txt`."
    if missing:
        return Finding("fail", f"{len(missing)} of {count} missing: {_some(missing)}", refresh)
    if other:
        return Finding("note", f"{len(other)} of {count} differ: {_some(other)}", refresh)
    return Finding(
        "ok", f"{count}, all as in requirements.txt", "What the labs show was made with these."
    )


def locked(text: str) -> list[Requirement]:
    """Return the requirements of a requirements.txt that apply to this Python and system."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    requirements = [Requirement(line) for line in lines if line]
    return [r for r in requirements if r.marker is None or r.marker.evaluate()]


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")


def torch() -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "its CPU build"
    return Finding("ok", f"{torch.__version__}, {build}", "On the CPU, each rank uses one thread.")


def triton() -> Finding:
    if importlib.util.find_spec("triton") is None:
        return Finding("note", "not installed", "Only lab 07 needs it. It exists for Linux.")
    import torch

    version = importlib.metadata.version("triton")
    if torch.cuda.is_available():
        return Finding("ok", version, "Kernels are compiled for the GPU.")
    return Finding("ok", version, "Without a GPU, lab 07's kernels run in Triton's interpreter.")


def backends() -> Finding:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return Finding("fail", "torch has no Gloo", "Remove .venv, then `make setup`.")
    if dist.is_nccl_available():
        return Finding(
            "ok",
            "Gloo, NCCL, and MPI by mpi4py",
            "NCCL with one rank on each GPU, otherwise Gloo and MPI.",
        )
    return Finding(
        "ok", "Gloo, and MPI by mpi4py; no NCCL", "NCCL comes with torch's CUDA build, for GPUs."
    )


def jupyterlab() -> Finding:
    version = importlib.metadata.version("jupyterlab")
    myst = Path(sys.prefix, "share/jupyter/labextensions/jupyterlab-myst/package.json")
    if not myst.exists():
        return Finding("note", f"{version}, without jupyterlab-myst", "Text shows its markup.")
    myst_version = json.loads(myst.read_text(encoding="utf-8"))["version"]
    return Finding(
        "ok",
        f"{version}, with jupyterlab-myst {myst_version}",
        "It opens with the list of labs and shows text as in the book.",
    )
