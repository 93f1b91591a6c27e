"""Fixtures that several test files share."""

import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support.built_book import full_book, sources, student_book  # noqa: F401, for all tests
from tests.support.kernel import Notebook


@pytest.fixture(autouse=True)
def same_random_tensors() -> None:
    """Seed torch, so that the order of the tests of a process does not change their numbers."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """A kernel with four ranks, shared by the tests of a file."""
    kernel = Notebook()
    try:
        started = kernel.run("from parlab import cluster\ncluster.start(4)")
        assert started.status == "ok", started.message
        ran = kernel.run(
            "%%px\nimport os, time\nfrom mpi4py import MPI\n"
            "from parlab.rank import comm, rank, world_size"
        )
        assert ran.status == "ok", ran.message
        yield kernel
    finally:
        kernel.shutdown()


def rank_processes() -> list[psutil.Process]:
    """Return the processes of all ranks on this machine: engines, controllers, mpiexec, helpers."""
    marks = (
        "ipyparallel.controller",
        "parlab.rank.engine",
        "parlab/cluster/",
        "parlab/rank/engine/",
        "mpiexec",
    )
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if any(m in line for m in marks) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def started_with(process: psutil.Process, mark: str) -> bool:
    """Return True if the process belongs to the run with this mark. Others may have ranks, too."""
    try:
        return process.environ().get("PARLAB_TEST_RUN") == mark
    except psutil.Error:  # it has just ended
        return False


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until `condition()` is true. If it takes too long, fail with a message about `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.05)
