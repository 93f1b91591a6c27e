"""Labs do not depend on the environment that the kernel and the children of ranks inherit."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Notebook

NOWHERE = "http://127.0.0.1:9"
INHERITED = {
    "MPLBACKEND": "Agg",
    "PYTHONWARNINGS": "error",
    "http_proxy": NOWHERE,
    "ALL_PROXY": NOWHERE,
    # a kernel in a Slurm job, on a node whose name cannot be resolved
    **{"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_NNODES": "1"},
    **{"SLURM_NODELIST": "no-such-node", "SLURM_JOB_NODELIST": "no-such-node"},
    # … and of torchrun, on another one
    **{"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "29500"},
    # a locale whose encoding is ASCII
    **{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    kernel = Notebook(INHERITED)
    try:
        yield kernel
    finally:
        kernel.shutdown()


def test_ranks_start_and_communicate(kernel: Notebook) -> None:
    ran = kernel.run("from parlab import cluster\ncluster.start(2)")
    assert (ran.status, ran.message) == ("ok", "")
    ran = kernel.run(
        "%%px\nimport torch\nimport torch.distributed as dist\nfrom parlab.rank import group\n"
        "total = torch.ones(2)\ndist.all_reduce(total, group=group)\ndist.all_reduce(total)\n"
        "print('β', total.tolist())"
    )
    assert (ran.status, ran.text) == ("ok", "[all ranks] β [4.0, 4.0]\n"), ran.message


TERMINATED = """%%px --timeout 30
import time
from multiprocessing import active_children, get_context
context = get_context("fork")
for turn in range(3):
    process = context.Process(target=time.sleep, args=(100,))
    process.start()
    process.terminate()
    process.join()
    with context.Pool(2) as pool:
        absolute = pool.map(abs, [-1, -2])
print(process.exitcode, absolute, active_children())
"""
FORKED = """%%px --timeout 30
import os
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
"""


def test_processes_that_a_rank_starts_can_be_terminated(kernel: Notebook) -> None:
    """If they inherited a handler for SIGTERM from the rank, they might continue to run."""
    ran = kernel.run(TERMINATED)
    assert (ran.error, ran.text) == ("", "[all ranks] -15 [1, 2] []\n"), ran.message


def test_a_forked_child_ends_with_its_cell(kernel: Notebook) -> None:
    """Otherwise, the child would be a second engine for its rank."""
    assert kernel.run(FORKED).text == "[all ranks] 0\n"
    assert kernel.run("%%px\nprint('next')").text == "[all ranks] next\n"


def test_pictures_are_shown(kernel: Notebook) -> None:
    ran = kernel.run("from parlab import plots\ndrawn, axes = plots.subplots('a title')")
    assert (ran.status, ran.text) == ("ok", "<Figure size 640x360 with 1 Axes>"), ran.message


def test_a_kernel_without_docstrings_says_why_no_ranks_start() -> None:
    kernel = Notebook({"PYTHONOPTIMIZE": "2"})
    try:
        ran = kernel.run("from parlab import cluster\ncluster.start(2)")
    finally:
        kernel.shutdown()
    assert ran.error == "ClusterError"
    assert "PYTHONOPTIMIZE=2 is set for this kernel" in ran.message
