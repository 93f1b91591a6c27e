"""parlab on emulated GPUs, and the emulation itself (`tests.rehearsal`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from parlab import mpirun
from parlab.cluster import gpus
from tests import rehearsal
from tests.support.on_ranks import cases_test

# The first test that needs the rehearsal compiles it, or waits for the process that does.
pytestmark = pytest.mark.timeout(900)

test_a_gpu_for_each_rank = cases_test(
    "cases_gpus", "cases_rehearsal_device", "cases_rehearsal_nccl", world_sizes=[2], gpus=2
)
test_a_deadlock = pytest.mark.nightly(
    cases_test("cases_rehearsal_deadlock", world_sizes=[2], gpus=2)
)
test_ranks_that_share_a_gpu = pytest.mark.nightly(cases_test("cases_gpus", world_sizes=[3], gpus=1))

CHOICE = """
import json
import os
import torch
import torch.distributed as dist
from parlab.rank.engine.calls import device_of_rank

used = device_of_rank()
from parlab.rank import comm, device, group
from parlab.kernels import INTERPRETED

dist.all_reduce(x := torch.ones(1, device=device), group=group)
found = comm.gather([str(device), dist.get_backend(), x.item(), INTERPRETED, used])
if comm.rank == 0:
    print(json.dumps(found))
"""


@pytest.mark.nightly
def test_ranks_that_cannot_share_a_gpu_use_the_cpu(tmp_path: Path) -> None:
    rehearsal.needed()
    program = tmp_path / "choice.py"
    program.write_text(CHOICE)
    environment = rehearsal.environment(1) | {"REHEARSAL_EXCLUSIVE": str(tmp_path)}
    environment["PYTHONPATH"] += f":{os.getcwd()}"
    ran = mpirun.run(2, str(program), env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    busy = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    chosen = ["cpu", "gloo", 2.0, True, ["", False, busy]]
    assert json.loads(ran.stdout) == [chosen, chosen]


# cluster.start()


def test_as_many_ranks_start_as_torch_can_use_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal.needed()
    for name, value in rehearsal.environment(3).items():
        monkeypatch.setenv(name, value)
    assert gpus.default_ranks() == 3
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())  # torch is the CPU build again
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 3
    assert gpus.default_ranks() == 4


def test_the_start_says_what_the_ranks_use() -> None:
    own, sharing = gpus.RankDevice("H200", True), gpus.RankDevice("H200")
    assert gpus.description([own] * 4, None) == (
        "4 ranks, one on each GPU (H200); torch.distributed uses NCCL, `group` MPI"
    )
    assert gpus.description([sharing] * 4, None) == (
        "4 ranks sharing GPUs (H200); torch.distributed and `group` use MPI"
    )
    unused = gpus.RankDevice(why_not="torch is the CPU build")
    first, second = gpus.description([unused] * 2, None).splitlines()
    assert first.startswith("2 ranks on the CPU (") and first.endswith("uses Gloo, `group` MPI")
    assert second == "This machine's GPUs are not used: torch is the CPU build"
    assert len(gpus.description([gpus.RankDevice()], None).splitlines()) == 1
