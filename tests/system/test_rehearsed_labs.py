"""Every lab runs on rehearsed GPUs, one that ranks share, or one for each rank."""

import time
from pathlib import Path

import pytest

from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import numbered
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.gpu_check.cells import DEFAULT_RANKS, named_ranks
from parlab_staff.gpu_check.outcome import BAD
from parlab_staff.gpu_check.run_lab import LabRun
from tests import rehearsal

SECONDS = 900.0
# The rehearsal takes several times as long as a run on the CPU.
CELL_SECONDS, GRACE_SECONDS = 200.0, 60.0
# These cells cannot run in a rehearsal: one compiles kernels for this machine's GPU itself, and one
# calls a library with its own CUDA kernels (bitsandbytes).
NO_GPU_CODE = ("libcuda.so", "_cuda_getCurrentRawStream")


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("one_each", [False, True], ids=["shared", "one_each"])
@pytest.mark.parametrize("lab", numbered(SOLUTIONS, ".ipynb"), ids=lambda path: path.stem)
def test_labs_run_on_gpus(lab: Path, one_each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal.needed()
    ranks = named_ranks(read_cells(lab)) or DEFAULT_RANKS
    gpus = ranks if one_each else 1
    # Triton's interpreter reads addresses of device memory from tables.
    variables = rehearsal.environment(gpus, protect="triton" not in lab.stem)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = LabRun(lab, ranks, "cuda", mpi=True, deadline=time.monotonic() + SECONDS)
    run.least_seconds, run.grace_seconds = CELL_SECONDS, GRACE_SECONDS
    run.run()
    bad = {id: cell["why"] for id, cell in run.cells.items() if cell["status"] in BAD}
    bad = {id: why for id, why in bad.items() if not any(part in why for part in NO_GPU_CODE)}
    assert not bad
    assert run.notes == [f"MPI; group: MPIGroup, {'mpi4py' if gpus == 1 else 'nccl'}, cuda"]
