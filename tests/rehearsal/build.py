"""Builds the rehearsal's libraries with g++, once for each version of torch and its sources."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parlab.runtime.paths import ROOT

SOURCES = Path(__file__).parent / "device"
FOLDER = ROOT / "_build" / "rehearsal"


def needed() -> None:
    """Skip the test on machines that cannot build the libraries."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the rehearsal of a GPU needs Linux")
    if shutil.which("g++") is None:
        pytest.skip("g++: not found. The rehearsal of a GPU is built with it: run .ci/packages")


def preloaded() -> Path:
    """Return the library to load before torch. It adds an accelerator to torch."""
    return _built("preloaded", [])


def device() -> Path:
    """Return the library with the device itself, for this version of torch."""
    root = Path(torch.__file__).parent
    includes = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    libraries = [f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-ltorch_cpu", "-lc10", "-ltorch"]
    return _built("device", [*includes, "-w", *libraries])


def _built(name: str, options: list[str]) -> Path:
    contents = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    key = hashlib.sha256(contents + torch.__version__.encode()).hexdigest()[:12]
    made = FOLDER / f"{name}-{key}.so"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles, and the others wait for its file
        if not made.exists():
            part = made.with_suffix(".part")
            command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", SOURCES / f"{name}.cpp"]
            subprocess.run([*command, "-o", part, *options], check=True)
            part.replace(made)
    return made
