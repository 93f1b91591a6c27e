"""Examines the machine: cores, memory, GPUs."""

import os
import shutil
import subprocess
from pathlib import Path

import psutil

from parlab.mpirun import available_cores
from parlab.setup.doctor.finding import Finding

LAB_RANKS = 4
GIB = 2**30
ENOUGH_MEMORY = 4 * GIB  # four ranks, each with torch loaded, and a browser
ENOUGH_SHARED_MEMORY = GIB // 4
PROGRAM_TIMEOUT = 10  # seconds


def cores() -> Finding:
    n = available_cores()
    found = f"{n} for this process, of {os.cpu_count()}"
    if n >= LAB_RANKS:
        return Finding("ok", found, f"Each of {LAB_RANKS} ranks has its own core.")
    return Finding(
        "note",
        found,
        "The ranks of a lab share the cores: everything works, but takes longer.",
    )


def memory() -> Finding:
    total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    limit = _container_limit()
    found = f"{available / GIB:.1f} GiB free, of {total / GIB:.1f}"
    if limit is not None and limit < total:
        available = min(available, limit)
        found = f"{limit / GIB:.1f} GiB allowed to this container, of {total / GIB:.1f}"
    if available >= ENOUGH_MEMORY:
        return Finding("ok", found, f"Enough for {LAB_RANKS} ranks and JupyterLab.")
    return Finding(
        "note",
        found,
        "This is little: close other programs, or start fewer ranks with `cluster.start(2)`.",
    )


def _container_limit() -> int | None:
    """Return the bytes that this control group may use, or None if there is no limit."""
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no control groups, or "max"
        return None


def shared_memory() -> Finding:
    if not os.path.isdir("/dev/shm"):
        return Finding("note", "no /dev/shm", "Messages between ranks may be slower.")
    size = shutil.disk_usage("/dev/shm")
    found = f"/dev/shm has {size.free / 2**20:,.0f} MiB free, of {size.total / 2**20:,.0f}"
    if size.free >= ENOUGH_SHARED_MEMORY:
        return Finding("ok", found, "Ranks of this machine send messages through it.")
    return Finding(
        "note",
        found,
        "Ranks start, but NCCL and large messages need more: start a container with --shm-size=1g.",
    )


def gpus() -> Finding:
    listed = _nvidia_smi()
    import torch

    usable = torch.cuda.device_count()
    if listed and not usable:
        why = (
            "torch is the CPU build: remove .venv, and run `make setup` without a CPU package index"
            if torch.version.cuda is None
            else "torch cannot use them: check the driver's version and CUDA_VISIBLE_DEVICES"
        )
        return Finding("note", listed, f"The labs run on the CPU, because {why}.")
    if not usable:
        return Finding("ok", "none", "The labs run on the CPU. No lab needs a GPU.")
    if usable == 1:
        meaning = "The ranks share it and use MPI, because NCCL allows one rank on each GPU."
    else:
        meaning = f"Labs 01 to 09 start {usable} ranks, one on each GPU, and use NCCL."
    return Finding("ok", listed or f"{usable}", meaning)


def _nvidia_smi() -> str:
    """Return the list of GPUs that the driver prints, or ""."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(
            [program, *query],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROGRAM_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    return "; ".join(ran.stdout.splitlines()) if ran.returncode == 0 else ""
