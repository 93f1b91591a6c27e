"""The arguments and variables with which mpiexec starts ranks on any machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab import mpirun
from tests.support.on_ranks import World, on_ranks

SAY = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"


WAIT = """
import resource, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
if comm.rank == 0:
    time.sleep(2)  # the others wait
comm.Barrier()
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before if comm.rank else 10**6)
"""


def run(n: int, program: str = SAY, **variables: str) -> list[str]:
    """Return the lines that `n` ranks print if these variables are set."""
    ran = subprocess.run(
        mpirun.command(n, sys.executable, "-c", program),
        env=os.environ | variables | mpirun.environment(n, os.environ | variables),
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    return ran.stdout.split()


def test_more_ranks_than_cores_start() -> None:
    n = mpirun.available_cores() + 1
    assert run(n) == [str(n)] * n


def test_ranks_that_wait_sleep() -> None:
    """With sched_yield, Linux counts no such switch, and a waiting rank keeps its core busy."""
    times_asleep = map(int, run(mpirun.available_cores() + 1, WAIT))
    assert min(times_asleep) > 100


def test_ranks_start_on_a_node_that_slurm_lent_as_one_task() -> None:
    """mpiexec uses the number of Slurm's tasks as its slots, even if a task has several cores."""
    node = os.uname().nodename
    lent = {"SLURM_JOBID": "1", "SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "1"}
    lent |= {"SLURM_NODELIST": node, "SLURM_JOB_NODELIST": node, "SLURM_CPUS_ON_NODE": "16"}
    assert run(2, **lent) == ["2", "2"]


@pytest.mark.parametrize(
    ("tasks", "slots"), [("", 8), ("1", 1), ("4", 4), ("4(x2),1", 4), ("2,1", 2), ("64", 8)]
)
def test_slots_are_the_cores_and_at_most_the_tasks(
    tasks: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpirun, "_whole_cores", lambda: 8)
    assert mpirun.slots({"SLURM_TASKS_PER_NODE": tasks} if tasks else {}) == slots


def test_two_threads_of_a_core_are_one_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpiexec counts cores: 4 ranks on 2 cores with 4 threads must oversubscribe."""
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(mpirun, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert mpirun.slots({}) == 2
    assert any(name.startswith("PRTE") for name in mpirun.environment(4, {}))


def test_variables_that_the_user_set_are_kept() -> None:
    theirs = {"OMP_NUM_THREADS": "3", "MPI4PY_RC_FAST_REDUCE": "1"}
    assert not mpirun.environment(1, theirs).keys() & theirs.keys()


def test_ranks_start_if_home_is_not_set() -> None:
    """Some containers do not set it. Open MPI would then not start."""
    homeless = {name: value for name, value in os.environ.items() if name != "HOME"}
    ran = subprocess.run(
        mpirun.command(1, sys.executable, "-c", SAY),
        env=homeless | mpirun.environment(1, homeless),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr


def test_enough_cores_get_the_defaults_of_open_mpi() -> None:
    assert not any(name.startswith("PRTE") for name in mpirun.environment(1, {}))


def test_on_other_nodes_only_the_copies_through_shared_memory_are_set() -> None:
    ours = [name for name in mpirun.environment(None, {}) if name.startswith(("PRTE", "OMPI_MCA"))]
    assert ours == ["OMPI_MCA_smsc", "OMPI_MCA_btl_sm_max_send_size"]


def receive_too_little(world: World, size: int) -> tuple[str, int]:
    """Receive `size` bytes into a buffer of 1,000. Return the error, and the bytes after it.

    Each rank sends to the next one.
    """
    memory = bytearray(size + 1000)
    sent = world.comm.Isend(b"x" * size, dest=(world.rank + 1) % world.size)
    error = ""
    try:
        world.comm.Recv(memoryview(memory)[:1000], source=(world.rank - 1) % world.size)
    except Exception as found:
        error = str(found)
    sent.Wait()
    return error, sum(map(bool, memory[1000:]))


@pytest.mark.parametrize("size", [2000, 10_000, 5_000_000])
def test_a_message_that_is_too_large_destroys_no_memory(size: int) -> None:
    got = on_ranks(2, receive_too_little, size)
    assert got == [["MPI_ERR_TRUNCATE: message truncated", 0]] * 2


def test_no_fabric_is_looked_for_on_one_machine() -> None:
    """Open MPI's component for fabrics sleeps for a second in each rank's start."""
    looks = {"OMPI_MCA_btl_base_verbose": "10"}
    of_open_mpi = mpirun.environment(None, os.environ | looks)
    for ours, fabrics in ((of_open_mpi, True), (mpirun.environment(1), False)):
        ran = subprocess.run(
            mpirun.command(1, sys.executable, "-c", SAY),
            env=os.environ | looks | ours,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "found loaded component sm" in ran.stderr
        assert ("found loaded component ofi" in ran.stderr) == fabrics
