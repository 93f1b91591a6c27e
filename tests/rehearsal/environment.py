"""The variables with which a process has the rehearsal's GPUs. Needs g++ at the first use."""

import os
from pathlib import Path

from tests.rehearsal import build

FOLDER = Path(__file__).parent


def environment(gpus: int, *, nccl: bool = True, protect: bool = True) -> dict[str, str]:
    """Return the variables to set for a process, and for those that it starts.

    Args:
        gpus: how many GPUs this machine has.
        nccl: whether torch.distributed has the stand-in for NCCL.
        protect: whether the host's code gets a fault when it touches device memory. Not so for
            Triton's interpreter, which reads addresses from tables.
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
