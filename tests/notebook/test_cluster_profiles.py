"""Ranks that an ipyparallel profile starts, as with Slurm and SSH, but on one machine."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import rank_processes, started_with
from tests.support.kernel import Notebook

# Starts engines as a batch system does: with mpiexec, but without ipyparallel's options for MPI.
LAUNCHER = """
from ipyparallel.cluster import launcher
from parlab import mpirun

class MPIEngines(launcher.MPIEngineSetLauncher):
    @property
    def program(self):
        return self.engine_cmd

c.Cluster.engine_launcher_class = MPIEngines
c.MPIEngines.mpi_cmd = [mpirun.mpiexec()]
c.MPIEngines.mpi_args = mpirun.MPI_ARGS
c.MPIEngines.environment = {**mpirun.environment(3), "FROM_PROFILE": "yes"}
"""
# Each engine runs this after MPI has started, before it registers.
LAST_RANK_FIRST = """
import os, time
time.sleep((2 - int(os.environ["OMPI_COMM_WORLD_RANK"])) * 0.5)
"""
# A launcher that starts n separate programs, each with its own MPI world.
SEPARATE = """
from parlab import mpirun
c.Cluster.engine_launcher_class = "local"
c.LocalEngineLauncher.environment = {**mpirun.environment(3)}
"""


# ipyparallel's own launcher, as in its manual.
PLAIN = """
from parlab import mpirun
c.Cluster.engine_launcher_class = "mpi"
c.MPILauncher.environment = {**mpirun.environment(3)}
"""


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ipython")
    for name, config in {"nodes": LAUNCHER, "separate": SEPARATE, "plain": PLAIN}.items():
        (folder / f"profile_{name}").mkdir()
        (folder / f"profile_{name}" / "ipcluster_config.py").write_text(config)
    (folder / "profile_nodes" / "ipengine_config.py").write_text(LAST_RANK_FIRST)
    return folder


@pytest.fixture(scope="module")
def kernel(profiles: Path) -> Iterator[Notebook]:
    notebook = Notebook()
    try:
        notebook.run(f"import os; os.environ['IPYTHONDIR'] = {str(profiles)!r}")
        yield notebook
    finally:
        notebook.shutdown()


def test_a_profile_starts_the_ranks_its_own_way(kernel: Notebook) -> None:
    """Local ranks that the same notebook started before leave no settings for the profile.

    The profile's ranks register in reverse order, but get their own numbers.
    """
    ran = kernel.run("from parlab import cluster\ncluster.start(2)")
    assert ran.status == "ok", ran.message
    ran = kernel.run("cluster.start(3, profile='nodes')")
    assert ran.status == "ok", ran.message
    ran = kernel.run(
        "%%px\nimport os\nfrom parlab.rank import comm\n"
        "print(comm.rank, comm.allreduce(1), os.environ['FROM_PROFILE'])"
    )
    assert ran.text == "".join(f"[rank {r}] {r} 3 yes\n" for r in range(3)), ran.message
    assert kernel.run("%%px --targets 2\ncomm.rank").text == "[rank 2] 2\n"
    ran = kernel.run(
        "%%px --timeout 2\nif comm.rank == 1:\n    comm.recv(source=1)\nelse:\n    comm.Barrier()"
    )
    assert "rank 1      line 3: comm.recv" in ran.message
    assert "ranks 0, 2  line 5: comm.Barrier" in ran.message


def test_deadlocks_under_ipyparallels_own_launcher_lose_no_variables(kernel: Notebook) -> None:
    ran = kernel.run("from parlab import cluster\ncluster.start(3, profile='plain')")
    assert ran.status == "ok", ran.message
    assert kernel.run("%%px\nfrom parlab.rank import comm, rank").status == "ok"
    ran = kernel.run("%%px --timeout 1\nif rank != 1:\n    comm.Barrier()")
    assert "variables are intact" in ran.message
    assert kernel.run("%%px\nprint(comm.allreduce(1))").text == "[all ranks] 3\n"


def test_ranks_that_are_not_one_world_are_refused_and_ended(kernel: Notebook) -> None:
    mark = secrets.token_hex(8)  # other tests may have ranks on this machine
    ran = kernel.run(f"import os; os.environ['PARLAB_TEST_RUN'] = {mark!r}")
    assert ran.status == "ok", ran.message
    ran = kernel.run("cluster.start(3, profile='separate')")
    assert ran.error == "ClusterError"
    assert "expected 3 ranks of one MPI world" in ran.message
    assert "worlds of 1" in ran.message
    assert [p for p in rank_processes() if started_with(p, mark)] == []


def test_a_missing_profile_is_refused(kernel: Notebook, profiles: Path) -> None:
    ran = kernel.run("cluster.start(3, profile='nodse')")
    assert ran.error == "ClusterError"
    assert "no ipyparallel profile 'nodse'" in ran.message
    assert "'nodes', 'plain', 'separate'" in ran.message
    assert not (profiles / "profile_nodse").exists()
