"""Ranks that do not stop soon get more time, and are replaced only if they cannot be stopped."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import CONTROLLER, DEADLINE, in_time, works_and_keeps

pytestmark = pytest.mark.usefixtures("held")


WINDOW = "import numpy as np\nwindow = MPI.Win.Create(np.zeros(4), comm=comm)\n"
# Calls into C that neither an interrupt nor a revocation ends.
UNSTOPPABLE = {
    "a computation": "import itertools\nif rank == 1:\n    sum(itertools.count())",
    "a window's fence": WINDOW + "if rank != 0:\n    window.Fence()",
    "a window's lock": WINDOW + "window.Lock(0, MPI.LOCK_EXCLUSIVE)\ncomm.Barrier()",
    "a window's epoch": (
        WINDOW + "if rank == 0:\n    window.Post(comm.group.Incl([1]))\n    window.Wait()"
    ),
    "a file": (
        "import tempfile\nname = comm.bcast(tempfile.mktemp())\n"
        "file = MPI.File.Open(comm, name, MPI.MODE_CREATE | MPI.MODE_RDWR)\n"
        "if rank != 0:\n    file.Write_at_all(rank, b'1')"
    ),
    "MPI.Finalize on one rank": "if rank == 0:\n    MPI.Finalize()",
}


@pytest.mark.parametrize("name", cases(UNSTOPPABLE, {"a window's fence"}))
def test_a_cell_stuck_in_c_ends_in_time_and_says_why_variables_are_lost(
    notebook: Notebook, name: str
):
    ran = notebook.run(f"%%px --timeout {DEADLINE}\n{UNSTOPPABLE[name]}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert "could not be stopped. Python cannot interrupt a call into C code" in ran.message
    assert "`held`" in ran.message
    assert "Error" not in ran.text, "MPI has nothing to say about windows"
    works_and_keeps(notebook, held=False)
    assert in_time(notebook, ran, DEADLINE)


@pytest.mark.nightly
def test_c_code_may_finish_computing_after_the_stop_button(notebook: Notebook, tmp_path: Path):
    """C code ignores interrupts until it returns, here after seconds. Variables are kept."""
    flags = [tmp_path / f"begun{rank}" for rank in range(4)]
    sent = notebook.send(
        f"%%px --timeout 100\nopen(f'{tmp_path}/begun{{rank}}', 'w').close()\n"
        "end = time.monotonic() + 6\nany(map(end.__lt__, iter(time.monotonic, None)))"
    )
    wait_until(lambda: all(flag.exists() for flag in flags), 60, "the cell")
    notebook.interrupt()
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted", ran.message
    assert "line 4: any(map(end.__lt__" in ran.message
    assert "variables are intact" in ran.message
    works_and_keeps(notebook, held=True)


def test_ranks_that_end_just_as_they_would_be_given_up_keep_their_variables(notebook: Notebook):
    ran = notebook.run(
        "from parlab.cluster.freeing import Freeing\n"
        "looks = Freeing._may_stop\n"
        "def late(self, *arguments):\n"
        "    self._stop.wait_for(lambda: not self.busy(), 60)\n"
        "    return looks(self, *arguments)\n"
        "Freeing._may_stop = late"
    )
    assert ran.status == "ok", ran.message
    ran = notebook.run(
        "%%px --timeout 1\nend = time.monotonic() + 5\n"
        "any(map(end.__lt__, iter(time.monotonic, None)))"
    )
    notebook.run("Freeing._may_stop = looks")
    assert "variables are intact" in ran.message
    works_and_keeps(notebook, held=True)


def test_ranks_that_cannot_be_freed_are_replaced(notebook: Notebook):
    ran = notebook.run(
        "%%px --timeout 2\nwhile True:\n    try:\n        time.sleep(100)\n"
        "    except BaseException:\n        pass"
    )
    assert ran.error == "DeadlineExceeded"
    assert "line 4: time.sleep(100)" in ran.message
    assert "New ranks are starting" in ran.message
    works_and_keeps(notebook, held=False)
    assert in_time(notebook, ran, 2)


@pytest.fixture
def load() -> Iterator[None]:
    """Run four busy processes for each core. They end with this process, even if it is killed."""
    program = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
    begin = [sys.executable, "-c", program, str(os.getpid())]
    # In separate sessions, because Linux divides CPU time between sessions.
    busy = [subprocess.Popen(begin, start_new_session=True) for _ in range(4 * os.cpu_count())]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


@pytest.mark.timeout(600)
@pytest.mark.nightly
@pytest.mark.xdist_group("clock")  # not at the same time as tests that measure seconds
def test_deadlocks_on_a_busy_machine_lose_no_variables(notebook: Notebook, load: None):
    for turn in range(5):
        code = f"if rank != {turn % 4}:\n    comm.allreduce(1)"
        ran = notebook.run(f"%%px --timeout {DEADLINE}\n{code}")
        assert ran.error == "DeadlineExceeded", ran.message
        works_and_keeps(notebook, held=True)


SUPERVISORS = "%%px\nprint(os.getppid())"


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(SUPERVISORS, id="supervisors"),
        pytest.param(CONTROLLER, id="controller", marks=pytest.mark.nightly),
    ],
)
def test_ranks_that_cannot_be_reached_for_a_while_keep_their_variables(
    notebook: Notebook, tmp_path: Path, of: str
):
    """On a very busy machine, none of these processes may run for a while. They are not dead."""
    lines = notebook.run(of).text.splitlines()
    stopped = [psutil.Process(int(line.rpartition(" ")[2])) for line in lines if line]
    flags = [tmp_path / f"begun{rank}" for rank in range(4)]
    sent = notebook.send(
        f"%%px --timeout 100\nopen(f'{tmp_path}/begun{{rank}}', 'w').close()\n"
        "if rank != 1:\n    comm.allreduce(1)"
    )
    wait_until(lambda: all(flag.exists() for flag in flags), 60, "the cell")
    try:
        for process in stopped:
            process.suspend()
        notebook.interrupt()
        while "Stopping. Ranks that do not end within ten seconds" not in notebook.next_text(sent):
            pass
    finally:
        for process in stopped:
            process.resume()
    ran = notebook.wait(sent)
    assert ran.error == "RankInterrupted", ran.message
    works_and_keeps(notebook, held=True)
