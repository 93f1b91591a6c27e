"""Every lab runs on rehearsed GPUs, in the two layouts that a GPU node may have."""

import time
from pathlib import Path

import pytest

from parlab.runtime.paths import numbered
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.gpu_check.compare import STORED_RANKS
from parlab_staff.gpu_check.outcome import BAD
from parlab_staff.gpu_check.run_lab import LabRun
from tests import rehearsal

SECONDS = 900.0
# The rehearsal takes several times as long as the CPU.
CELL_SECONDS, GRACE_SECONDS = 200.0, 60.0
LAYOUTS = {"shared": 1, "one_each": STORED_RANKS}


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("gpus", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("lab", numbered(SOLUTIONS, ".ipynb"), ids=lambda path: path.stem)
def test_labs_run_on_gpus(lab: Path, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal.needed()
    # Triton's interpreter reads addresses of device memory from tables.
    variables = rehearsal.environment(gpus, protect="triton" not in lab.stem)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = LabRun(lab, STORED_RANKS, "cuda", mpi=True, deadline=time.monotonic() + SECONDS)
    run.least_seconds, run.grace_seconds = CELL_SECONDS, GRACE_SECONDS
    outcome = run.run()
    bad = {id: cell["why"] for id, cell in run.cells.items() if cell["status"] in BAD}
    assert not bad and outcome.status not in BAD, (outcome, bad)
    assert run.notes == [f"MPI; group: MPIGroup, {'mpi4py' if gpus == 1 else 'nccl'}, cuda"]
