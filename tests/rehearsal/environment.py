"""The variables that give a process the rehearsal's GPUs. The first use needs g++."""

import os
from pathlib import Path

from tests.rehearsal import build

FOLDER = Path(__file__).parent


def environment(gpus: int, *, nccl: bool = True, protect: bool = True) -> dict[str, str]:
    """Return the variables to set for a process and for the processes that it starts.

    Args:
        gpus: the number of GPUs that this machine appears to have.
        nccl: True if torch.distributed has the stand-in for NCCL.
        protect: True if the host's code gets a fault when it touches device memory. Triton's
            interpreter, which reads addresses from tables, needs False.
    """
    return {
        "REHEARSAL_GPUS": str(gpus),
        "REHEARSAL_ALL_GPUS": str(gpus),
        "REHEARSAL_NCCL": str(int(nccl)),
        "REHEARSAL_PROTECT": str(int(protect)),
        "REHEARSAL_DEVICE": str(build.device()),
        "LD_PRELOAD": _before("LD_PRELOAD", build.preloaded()),
        "PATH": _before("PATH", FOLDER / "bin"),
        "PYTHONPATH": _before("PYTHONPATH", FOLDER / "site"),
        "REHEARSAL_DEADLOCK_SECONDS": os.environ.get("REHEARSAL_DEADLOCK_SECONDS", "20"),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",  # as in some containers
    }


def _before(name: str, path: Path) -> str:
    others = os.environ.get(name)
    return f"{path}:{others}" if others else str(path)
