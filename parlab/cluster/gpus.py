"""Chooses how many ranks start by default, and describes the devices that the ranks use."""

import os
import shutil
import subprocess
import sys

from parlab.costs.networks import Network
from parlab.rank.engine.calls import RankDevice

CPU_RANKS = 4
TORCH_SECONDS = 60.0  # for another process to import torch and to look for GPUs


def default_ranks() -> int:
    """Return the number of GPUs if torch can use several, otherwise 4.

    Ask torch in another process, and only if the driver lists several GPUs, because importing
    torch takes seconds.
    """
    if len(_listed()) < 2:
        return CPU_RANKS
    program = "import torch; print(torch.cuda.device_count())"
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            encoding="utf-8",
            timeout=TORCH_SECONDS,
        )
        usable = int(ran.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return CPU_RANKS
    return usable if usable > 1 else CPU_RANKS


def _listed() -> list[str]:
    """Return a line for each GPU that the driver lists on this machine."""
    program = shutil.which("nvidia-smi")
    if program is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, encoding="utf-8", errors="replace", timeout=30
        )
    except subprocess.TimeoutExpired:
        return []
    return listed.stdout.splitlines() if listed.returncode == 0 else []


def description(devices: list[RankDevice], network: Network | None) -> str:
    """Return a line that says what the ranks use, such as `4 ranks sharing GPUs (H200); …`."""
    ranks = f"{len(devices)} ranks" if len(devices) > 1 else "1 rank"
    first = devices[0]
    if first.one_gpu_each:
        each = "one on each GPU" if len(devices) > 1 else "on a GPU"
        return f"{ranks}, {each} ({first.gpu}); torch.distributed uses NCCL, `group` MPI"
    if first.gpu:
        return f"{ranks} sharing GPUs ({first.gpu}); torch.distributed and `group` use MPI"
    from parlab.mpirun import available_cores

    on = f"{ranks} on the CPU ({available_cores()} cores), one thread each"
    if network:
        return f"{on}; `group` is on an emulated network, {network}; `comm` is not emulated"
    text = f"{on}; torch.distributed uses Gloo, `group` MPI"
    why_not = next((device.why_not for device in devices if device.why_not), "")
    return f"{text}\nThis machine's GPUs are not used: {why_not}" if why_not else text
