"""Ranks start on any machine, live beside others, and end with their notebook."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from parlab.cluster import supervisor
from tests.conftest import wait_until
from tests.notebook import Notebook

MARKS = ("ipyparallel.controller", "parlab.rank.engine", "parlab/cluster/", "mpiexec")


@pytest.fixture
def kernel() -> Iterator[Notebook]:
    notebook = Notebook()
    yield notebook
    notebook.shutdown()


def started(notebook: Notebook, n: int) -> None:
    ran = notebook.run(f"from parlab import cluster\ncluster.start({n})")
    assert ran.status == "ok", ran.message
    assert ran.text.startswith(f"{n} rank")


def processes_of(notebook: Notebook) -> list[psutil.Process]:
    """Everything that the notebook's ranks consist of, on whatever terms with the kernel."""
    ran = notebook.run(
        "from psutil import Process\n"
        "session = cluster.current()\n"
        "heads = [session._processes.cluster.controller.pid,\n"
        "         session._processes.cluster.engine_set.pid, session._processes.reaper.pid]\n"
        "print(*heads, *(c.pid for head in heads for c in Process(head).children(recursive=True)))"
    )
    assert ran.status == "ok", ran.message
    return [psutil.Process(int(pid)) for pid in ran.text.split()]


def alive(processes: list[psutil.Process]) -> list[str]:
    left = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.NoSuchProcess:
            continue
    return left


@pytest.mark.parametrize("busy", ["idle", "waiting in MPI", "in a loop"])
def test_nothing_outlives_a_kernel_that_is_killed(busy: str):
    notebook = Notebook()
    started(notebook, 4)
    assert notebook.run("%%px\nfrom parlab.rank import comm, rank").status == "ok"
    processes = processes_of(notebook)
    assert len(processes) >= 3 + 4 * 2
    if busy != "idle":
        code = "comm.recv(source=rank)" if busy == "waiting in MPI" else "while True: pass"
        notebook.send(f"%%px --timeout 600\n{code}")
    os.kill(notebook.pid, signal.SIGKILL)
    try:
        wait_until(lambda: not alive(processes), 20, "the end of every process of the ranks")
    finally:
        notebook.kill()


def test_nothing_outlives_a_kernel_that_ends_well():
    notebook = Notebook()
    started(notebook, 2)
    processes = processes_of(notebook)
    notebook.shutdown()
    wait_until(lambda: not alive(processes), 20, "the end of every process of the ranks")


def test_two_notebooks_do_not_disturb_each_other(kernel: Notebook):
    other = Notebook()
    try:
        for notebook, n in ((kernel, 2), (other, 3)):
            started(notebook, n)
            assert notebook.run("%%px\nfrom parlab.rank import comm, rank, group").status == "ok"
        stuck = kernel.send("%%px --timeout 4\ncomm.recv(source=rank)")
        ran = other.run(
            "%%px\nimport torch, torch.distributed as dist\nx = torch.ones(1)\n"
            "dist.all_reduce(x, group=group)\nprint(comm.allreduce(1), x.item())"
        )
        assert ran.text == "[all ranks] 3 3.0\n", ran.message
        assert kernel.wait(stuck).error == "DeadlineExceeded"
        other.run("%%px\nimport os; os._exit(1)")
        ran = kernel.run("%%px\nprint(comm.allreduce(1))")
        assert ran.text == "[all ranks] 2\n", ran.message
    finally:
        other.shutdown()


def test_one_rank_and_more_ranks_than_cores(kernel: Notebook):
    for n in (1, (os.cpu_count() or 1) + 3):
        started(kernel, n)
        ran = kernel.run("%%px\nfrom parlab.rank import comm\nprint(comm.allreduce(1))")
        assert ran.text == (f"[all ranks] {n}\n" if n > 1 else "1\n"), ran.message


def test_starting_again_ends_the_first_ranks(kernel: Notebook):
    started(kernel, 2)
    first = processes_of(kernel)
    started(kernel, 3)
    wait_until(lambda: not alive(first), 20, "the end of the first ranks")
    assert kernel.run("%px __import__('parlab.rank').rank.world_size").text == "[all ranks] 3\n"


def test_restart_gives_fresh_ranks_with_the_imports(kernel: Notebook):
    started(kernel, 2)
    assert kernel.run("%%px\nfrom parlab.rank import comm, rank\nheld = rank").status == "ok"
    ran = kernel.run("cluster.restart()")
    assert ran.status == "ok", ran.message
    ran = kernel.run("%%px\nprint(comm.allreduce(1), 'held' in globals())")
    assert ran.text == "[all ranks] 2 False\n", ran.message


@pytest.mark.parametrize("n", ["0", "-1", "'four'", "2.5"])
def test_a_number_of_ranks_that_is_none_is_refused(kernel: Notebook, n: str):
    ran = kernel.run(f"from parlab import cluster\ncluster.start({n})")
    assert ran.error == "ValueError"
    assert "number of ranks, 1 or more" in ran.message


def test_cells_without_ranks_say_what_to_do(kernel: Notebook):
    started(kernel, 1)
    assert kernel.run("cluster.stop()").status == "ok"
    ran = kernel.run("%%px\n1")
    assert ran.error == "ClusterError"
    assert "cluster.start()" in ran.message


def test_bad_options_are_refused(kernel: Notebook):
    started(kernel, 2)
    assert kernel.run("%%px --timeout 0\n1").error == "UsageError"
    assert kernel.run("%%px --timeout soon\n1").error == "UsageError"
    ran = kernel.run("%%px --targets 5\n1")
    assert (ran.status, ran.error) == ("error", "UsageError")
    ran = kernel.run("%%px --targets 1\nprint('only me')")
    assert ran.text == "[rank 1] only me\n"


def test_no_setting_is_made_that_this_machine_does_not_need():
    code = (
        "import os; from parlab import mpirun; os.geteuid = lambda: 1000\n"
        "print(sorted(mpirun.environment(1, {})), sorted(mpirun.environment(10**6, {})))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    ordinary, crowded = eval(printed.replace("] [", "], ["))
    assert ordinary == ["MPI4PY_RC_FAST_REDUCE", "OMPI_MCA_btl", "OMP_NUM_THREADS"]
    assert set(crowded) - set(ordinary) == {"PRTE_MCA_rmaps_default_mapping_policy"}


def test_what_the_user_sets_stays():
    from parlab import mpirun

    assert "OMP_NUM_THREADS" not in mpirun.environment(4, {"OMP_NUM_THREADS": "8"})


def test_a_profile_starts_the_ranks_its_own_way(kernel: Notebook, tmp_path):
    """The way that Slurm and SSH profiles take: launcher from the profile, ranks from anywhere.

    Ranks of this machine, started before in the same notebook, leave it no settings.
    """
    folder = tmp_path / "profile_nodes"
    folder.mkdir()
    (folder / "ipcluster_config.py").write_text(
        "from parlab import mpirun\n"
        "c.Cluster.engine_launcher_class = 'mpi'\n"
        "c.MPIEngineSetLauncher.mpi_cmd = [mpirun.mpiexec()]\n"
        "c.MPIEngineSetLauncher.mpi_args = mpirun.MPI_ARGS\n"
        "c.MPIEngineSetLauncher.environment = {**mpirun.environment(3), 'FROM_PROFILE': 'yes'}\n"
    )
    started(kernel, 2)
    kernel.run(f"import os; os.environ['IPYTHONDIR'] = {str(tmp_path)!r}")
    ran = kernel.run("cluster.start(3, profile='nodes')")
    assert ran.status == "ok", ran.message
    ran = kernel.run(
        "%%px\nimport os\nfrom parlab.rank import comm\n"
        "print(comm.allreduce(1), os.environ['FROM_PROFILE'])"
    )
    assert ran.text == "[all ranks] 3 yes\n", ran.message
    ran = kernel.run("%%px --timeout 3\ncomm.recv(source=comm.rank)")
    assert "ranks 0-2  line 2: comm.recv" in ran.message


def test_group_imported_on_some_ranks_only_is_stuck_and_freed(kernel: Notebook):
    started(kernel, 3)
    assert kernel.run("%%px\nfrom parlab.rank import comm, rank\nheld = rank").status == "ok"
    ran = kernel.run("%%px --timeout 15\nif rank != 1:\n    from parlab.rank import group")
    assert ran.error == "DeadlineExceeded"
    assert "ranks 0, 2  line 3: from parlab.rank import group" in ran.message
    assert "variables are intact" in ran.message
    ran = kernel.run(
        "%%px --timeout 120\nfrom parlab.rank import group\n"
        "import torch, torch.distributed as dist\n"
        "x = torch.ones(1)\ndist.all_reduce(x, group=group)\ndist.all_reduce(x)\nprint(x, held)"
    )
    assert ran.text == "".join(f"[rank {rank}] tensor([9.]) {rank}\n" for rank in range(3))


def test_idle_ranks_leave_the_processors_alone(kernel: Notebook):
    started(kernel, 2)
    assert kernel.run("%%px\nfrom parlab.rank import comm").status == "ok"
    supervisors = [p for p in processes_of(kernel) if p.cmdline()[3:4] == [supervisor.__file__]]
    assert len(supervisors) == 2

    def used() -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in supervisors)

    before, start = used(), time.monotonic()
    wait_until(lambda: time.monotonic() > start + 2, 10, "two seconds")
    assert used() - before < 0.1
