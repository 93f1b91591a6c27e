"""Ranks on two nodes of a real Slurm, through the profile that `parlab profile slurm` writes."""

import contextlib
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.course.percent_source import read_lab
from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.slurm import Slurm, two_nodes

pytestmark = [pytest.mark.nightly, pytest.mark.needs("slurm")]

PARLAB = Path(sys.executable).with_name("parlab")
# Two nodes on one machine are reached only over its loopback.
PROFILE = ("--nodes=2", "--ranks-per-node=2", "--gpus-per-node=2", "--interface=lo")
# The variables of a notebook that runs in a job. `srun` refuses the last two together.
IN_A_JOB = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "1", "SLURM_MEM_PER_NODE": "1"}
ON_TWO_NODES = "4 ranks on 2 nodes, 2 on each (n1, n2); messages between nodes go over lo (TCP)\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with two_nodes() as slurm:
        slurm.environment["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))
        slurm.run(str(PARLAB), "profile", "slurm", *PROFILE)
        yield slurm


@pytest.fixture(scope="module")
def profile(slurm: Slurm) -> Path:
    return Path(slurm.environment["IPYTHONDIR"]) / "profile_slurm"


@pytest.fixture(scope="module")
def kernel(slurm: Slurm) -> Iterator[Notebook]:
    notebook = Notebook(slurm.environment | IN_A_JOB)
    try:
        assert notebook.run("from parlab import cluster").status == "ok"
        yield notebook
    finally:
        notebook.shutdown()


def only_settings(profile: Path) -> bool:
    """Return True if no files of ranks are left in the profile."""
    return [file.name for file in profile.iterdir()] == ["ipcluster_config.py"]


@pytest.fixture
def ranks(kernel: Notebook) -> Notebook:
    """A notebook with four ranks on two nodes, which the next test uses, too."""
    ran = kernel.run(
        "if cluster._current is None or cluster._current._ranks is None:\n"
        "    cluster.start(4, profile='slurm')"
    )
    assert ran.status == "ok", ran.message
    ran = kernel.run("%%px\nfrom parlab.rank import comm")
    assert ran.status == "ok", ran.message
    return kernel


def test_the_start_reports_the_nodes_and_the_network(kernel: Notebook, slurm: Slurm) -> None:
    ran = kernel.run("cluster.start(4, profile='slurm')")
    assert ran.status == "ok", ran.message
    assert ran.text.endswith(ON_TWO_NODES), ran.text
    assert len(slurm.jobs()) == 1
    ran = kernel.run("%%px\nimport os\nprint(os.environ['SLURM_GPUS_ON_NODE'])")
    assert ran.text == "[all ranks] 2\n", "all of a node's GPUs, on both nodes"


IN_THE_JOB = """
import socket
from parlab import cluster
cluster.start(3)
print(cluster.current().view.apply_sync(socket.gethostname))
cluster.stop()
"""


def test_ranks_without_a_profile_start_in_a_job_of_two_nodes(
    kernel: Notebook, slurm: Slurm, tmp_path: Path
) -> None:
    """JupyterHub starts notebooks in jobs with `--export`. Their ranks stay on the notebook's node.

    Otherwise, mpiexec starts ranks through `srun`, which then does not pass variables to them.
    """
    kernel.run("cluster.stop()")  # the ranks of other tests hold both nodes
    script, output = tmp_path / "script.py", tmp_path / "output"
    script.write_text(IN_THE_JOB)
    exported = f"--export={','.join(slurm.environment)}"
    job = ("--wait", "--nodes=2", "--ntasks-per-node=1", exported, f"--output={output}")
    with contextlib.suppress(AssertionError):  # the job's own output says more
        slurm.run("sbatch", *job, f"--wrap=PYTHONPATH={ROOT} {sys.executable} {script}")
    assert output.read_text().endswith(f"{[socket.gethostname()] * 3}\n"), output.read_text()


def test_the_checks_of_lab_02_pass(ranks: Notebook) -> None:
    cells = read_lab(ROOT / "solutions/02_data_parallel.py").cells
    imports = next(cell for cell in cells if cell.source.startswith("%%px"))
    work = [cell for cell in cells if cell.role in ("exercise", "check")]
    for cell in [imports, *work]:
        magic, _, code = cell.source.partition("\n")
        ran = ranks.run(f"{magic.partition(' ')[0]} --timeout 200\n{code}", timeout=250)
        assert ran.status == "ok", ran.message
        assert cell.role != "check" or f"✓ {cell.key}" in ran.text
    assert {cell.role for cell in work} == {"exercise", "check"}


def test_a_deadlock_is_freed_and_variables_are_kept(ranks: Notebook) -> None:
    ran = ranks.run("%%px\nkept = comm.rank")
    assert ran.status == "ok", ran.message
    ran = ranks.run(
        "%%px --timeout 1\nif comm.rank == 3:\n    comm.recv(source=0)\nelse:\n    comm.Barrier()"
    )
    assert ran.error == "DeadlineExceeded"
    assert re.search(r"\b3 +line 3: comm.recv", ran.message), ran.message
    assert "variables are intact" in ran.message
    assert ranks.run("%%px\nprint(comm.allreduce(kept))").text == "[all ranks] 6\n"


def test_ranks_come_back_after_one_was_killed(ranks: Notebook, slurm: Slurm) -> None:
    before = slurm.jobs()
    ran = ranks.run(
        "%%px\nimport os\nif comm.rank == 3:\n    os.kill(os.getpid(), 9)\ncomm.Barrier()"
    )
    assert ran.error == "RankDied"
    assert "Rank 3 died: signal 9 (SIGKILL)" in ran.message
    assert "New ranks are starting" in ran.message
    ran = ranks.run("%%px\nprint(comm.allreduce(1))")
    assert ran.text.endswith("[all ranks] 4\n"), ran.message
    wait_until(lambda: len(slurm.jobs()) == 1, 60, "the end of the job of the ranks before")
    assert slurm.jobs() != before


def test_a_canceled_job_is_reported_and_not_submitted_again(
    ranks: Notebook, slurm: Slurm, tmp_path: Path
) -> None:
    (job,) = slurm.jobs()
    running = ranks.send(
        "%%px --timeout 120\nfrom pathlib import Path\n"
        f"Path({str(tmp_path)!r}, str(comm.rank)).touch()\ncomm.recv(source=comm.rank)"
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 4, 60, "all ranks in the cell")
    slurm.run("scancel", job)
    ran = ranks.wait(running)
    assert ran.error == "RankDied"
    assert f"Slurm job {job}: CANCELLED" in ran.message
    assert f"JOB {job} ON n1 CANCELLED AT" in ran.message, "the job's own log"
    assert "cluster.start() submits a new job" in ran.message
    assert slurm.jobs() == []
    assert "Run cluster.start() to start new ones" in ranks.run("%%px\n1").message


def test_a_job_that_fails_is_reported_with_its_log(kernel: Notebook, profile: Path) -> None:
    settings = (profile / "ipcluster_config.py").read_text()
    broken = profile.with_name("profile_broken")
    broken.mkdir()
    (broken / "ipcluster_config.py").write_text(settings.replace("exec ", "no-such-module && "))
    ran = kernel.run("cluster.start(4, profile='broken')")
    assert ran.error == "ClusterError"
    assert "FAILED (NonZeroExitCode), before all ranks had started" in ran.message
    assert "no-such-module: command not found" in ran.message
    assert only_settings(broken)


def test_a_job_that_slurm_refuses_is_reported_with_slurms_message(
    kernel: Notebook, slurm: Slurm
) -> None:
    slurm.run(str(PARLAB), "profile", "slurm", "--name=refused", "--partition=gpu")
    ran = kernel.run("cluster.start(4, profile='refused')")
    assert ran.error == "ClusterError"
    assert "Slurm does not take the job" in ran.message
    assert "invalid partition specified: gpu" in ran.message


@pytest.fixture
def full(slurm: Slurm, kernel: Notebook) -> Iterator[str]:
    """Another user's job on both nodes."""
    kernel.run("cluster.stop()")
    wait_until(lambda: slurm.idle_nodes() == 2, 60, "the end of other tests' jobs")
    everywhere = ("--parsable", "--nodes=2", "--exclusive", "--output=/dev/null")
    job = slurm.run("sbatch", *everywhere, "--wrap=sleep 1000")
    wait_until(lambda: slurm.idle_nodes() == 0, 60, "the start of a job on all nodes")
    yield job
    slurm.run("scancel", job)


def test_a_job_that_waits_says_so_and_stops(
    kernel: Notebook, slurm: Slurm, full: str, profile: Path
) -> None:
    starting = kernel.send("cluster.start(4, profile='slurm')")
    wait_until(lambda: len(slurm.jobs()) == 2, 60, "the job in the queue")
    while "PENDING (Resources). It waits for nodes" not in kernel.next_text(starting):
        pass  # Slurm knows the reason a moment later
    kernel.interrupt()
    ran = kernel.wait(starting)
    assert ran.error == "RankInterrupted"
    assert "It was canceled" in ran.message
    assert slurm.jobs() == [full]
    assert only_settings(profile)


def test_a_job_that_waits_ends_with_a_kernel_that_is_killed(
    slurm: Slurm, full: str, profile: Path
) -> None:
    notebook = Notebook(slurm.environment)
    notebook.send("from parlab import cluster\ncluster.start(4, profile='slurm')")
    wait_until(lambda: len(slurm.jobs()) == 2, 60, "the job in the queue")
    notebook.kill()
    wait_until(lambda: slurm.jobs() == [full], 60, "the end of the job of a kernel that is gone")
    wait_until(lambda: only_settings(profile), 60, "the end of its folder")
