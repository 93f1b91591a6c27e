"""Ranks do not disturb other ranks, are replaced when asked, and end with their notebook."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from parlab.cluster.processes import CLEANUP
from parlab.rank.engine import supervisor
from parlab.runtime.paths import MEMORY
from tests.conftest import wait_until
from tests.support.kernel import Notebook
from tests.support.nightly import cases
from tests.support.notebook_ranks import alive, processes_of, started


@pytest.mark.parametrize("busy", cases(["idle", "waiting in MPI", "in a loop"], {"waiting in MPI"}))
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
        wait_until(lambda: not alive(processes), 60, "the end of every process of the ranks")
    finally:
        notebook.kill()


def test_the_shared_memory_of_killed_processes_is_deleted():
    notebook = Notebook()
    started(notebook, 2)
    assert notebook.run("%%px\nfrom parlab.rank import comm\ncomm.barrier()").status == "ok"
    processes = processes_of(notebook)
    [cleanup] = [p for p in processes if any(CLEANUP in part for part in p.cmdline())]
    files = {
        Path(mapped.path)
        for process in processes
        for mapped in process.memory_maps()
        if mapped.path.startswith(f"{MEMORY}/")
    }
    assert files and all(file.exists() for file in files)
    try:
        for process in set(processes) - {cleanup}:
            process.kill()
        wait_until(lambda: not alive(list(set(processes) - {cleanup})), 60, "the end of the ranks")
        os.kill(notebook.pid, signal.SIGKILL)
        wait_until(lambda: not alive(processes), 60, "the end of the cleanup process")
    finally:
        notebook.kill()
    assert not [file for file in files if file.exists()]


CHILDREN = """%%px
import os, subprocess, time
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
os.system("sleep 1000 &")
if os.fork() == 0:
    time.sleep(1000)
    os._exit(0)
"""


# Ends the first thread of a rank. When a rank is killed, it is in this state for a moment, or
# longer if it uses much memory. It keeps its children until its last thread has ended.
FIRST_THREAD_ENDS = """%%px --noblock
import ctypes, platform
held = b"1" * 10**9
exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit_thread, 0)
"""


@pytest.mark.parametrize("first_thread", cases(["runs", "has ended"], {"runs"}))
def test_processes_that_ranks_started_end_with_them(first_thread: str):
    notebook = Notebook()
    started(notebook, 2)
    ran = notebook.run(CHILDREN)
    assert ran.status == "ok", ran.message
    processes = processes_of(notebook)
    sleeping = [p for p in processes if p.cmdline()[:1] == ["sleep"]]
    assert len(sleeping) == 2 * 3, "including those in other sessions or without a parent"
    if first_thread == "has ended":
        supervisors = {p.pid for p in processes if supervisor.__file__ in p.cmdline()[:4]}
        ranks = [p for p in processes if p.ppid() in supervisors and p not in sleeping]
        assert notebook.run(FIRST_THREAD_ENDS).status == "ok"
        wait_until(lambda: not alive(ranks), 60, "the end of the first threads")
    os.kill(notebook.pid, signal.SIGKILL)
    try:
        wait_until(lambda: not alive(processes), 60, "the end of all that the ranks started")
    finally:
        notebook.kill()


@pytest.mark.nightly
def test_a_rank_is_alone_in_its_session_and_ends_with_its_supervisor(kernel: Notebook) -> None:
    """Linux schedules sessions as groups. See `begin_session` of the supervisor."""
    started(kernel, 2)
    ran = kernel.run("%%px\nimport os\nprint(os.getsid(0) == os.getpid())")
    assert ran.text == "[all ranks] True\n", ran.message
    supervisors = [p for p in processes_of(kernel) if p.cmdline()[3:4] == [supervisor.__file__]]
    ranks = [child for p in supervisors for child in p.children()]
    assert len(ranks) == 2
    for process in supervisors:
        process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive


def test_a_child_of_the_kernel_does_not_keep_the_ranks():
    """The end of a child does not end the ranks, and a running child does not keep them alive."""
    notebook = Notebook()
    started(notebook, 2)
    ran = notebook.run(
        "import multiprocessing, sys, time\ncontext = multiprocessing.get_context('fork')\n"
        "short = context.Process(target=sys.exit)\nshort.start()\nshort.join()\n"
        "long = context.Process(target=time.sleep, args=(1000,))\nlong.start()\nprint(long.pid)"
    )
    assert ran.status == "ok", ran.message
    child = psutil.Process(int(ran.text.split()[-1]))
    try:
        assert notebook.run("%px 1 + 1").text == "[all ranks] 2\n"
        processes = processes_of(notebook)
        os.kill(notebook.pid, signal.SIGKILL)
        wait_until(lambda: not alive(processes), 60, "the end of every process of the ranks")
        assert alive([child])
    finally:
        child.kill()
        notebook.kill()


def test_nothing_outlives_a_kernel_that_ends_normally():
    notebook = Notebook()
    started(notebook, 2)
    processes = processes_of(notebook)
    notebook.shutdown()
    wait_until(lambda: not alive(processes), 60, "the end of every process of the ranks")


@pytest.mark.nightly
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


def test_starting_again_ends_the_first_ranks(kernel: Notebook):
    started(kernel, 2)
    first = processes_of(kernel)
    assert kernel.run("%%px\nimport math").status == "ok"
    ran = kernel.run("cluster.start(3)")
    assert "the imports and variables of earlier `%%px` cells" in ran.text, ran.text
    wait_until(lambda: not alive(first), 60, "the end of the first ranks")
    assert kernel.run("%px __import__('parlab.rank').rank.world_size").text == "[all ranks] 3\n"


def test_restart_gives_new_ranks_with_the_imports(kernel: Notebook):
    started(kernel, 2)
    assert kernel.run("%%px\nfrom parlab.rank import comm, rank\nheld = rank").status == "ok"
    ran = kernel.run("cluster.restart()")
    assert ran.status == "ok", ran.message
    ran = kernel.run("%%px\nprint(comm.allreduce(1), 'held' in globals())")
    assert ran.text == "[all ranks] 2 False\n", ran.message


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
    ran = kernel.run("%%px --targets foo\n1")
    assert (ran.error, ran.message.count("\n")) == ("UsageError", 0)
    assert "--targets takes ranks, as 0,2 or 0:3, not 'foo'" in ran.text
    ran = kernel.run("%%px --targets 5\n1")
    assert (ran.status, ran.error) == ("error", "UsageError")
    ran = kernel.run("%%px --targets 1\nprint('only me')")
    assert ran.text == "[rank 1] only me\n"


@pytest.mark.nightly
def test_idle_ranks_use_no_processor_time(kernel: Notebook):
    started(kernel, 2)
    assert kernel.run("%%px\nfrom parlab.rank import comm").status == "ok"
    supervisors = [p for p in processes_of(kernel) if p.cmdline()[3:4] == [supervisor.__file__]]
    assert len(supervisors) == 2

    def used() -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in supervisors)

    before, start = used(), time.monotonic()
    wait_until(lambda: time.monotonic() > start + 2, 10, "two seconds")
    assert used() - before < 0.1
