"""Builds the rehearsal's libraries with g++, once for each version of torch and its sources."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

from parlab.runtime.paths import ROOT

SOURCES = Path(__file__).parent / "device"
FOLDER = ROOT / "_build" / "rehearsal"


def preloaded() -> Path:
    """Return the library to load before torch, which gives torch an accelerator."""
    return _built("preloaded", [])


def device() -> Path:
    """Return the library with the device itself, for this torch."""
    root = Path(torch.__file__).parent
    includes = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    libraries = [f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-ltorch_cpu", "-lc10", "-ltorch"]
    return _built("device", [*includes, "-w", *libraries])


def _built(name: str, options: list[str]) -> Path:
    contents = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    key = hashlib.sha256(contents + torch.__version__.encode()).hexdigest()[:12]
    made = FOLDER / f"{name}-{key}.so"
    if made.exists():
        return made
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("the rehearsal of a GPU needs g++: install it, or run .ci/packages")
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(f".{os.getpid()}")
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCES / f"{name}.cpp")]
    subprocess.run([*command, "-o", str(part), *options], check=True)
    part.replace(made)  # another process may have made the same one
    return made
