"""Ranks start on any machine, do not disturb other ranks, and end with their notebook."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ipyparallel.cluster.launcher import LocalProcessLauncher

from parlab import mpirun
from parlab.cluster.launchers import output_of
from parlab.cluster.processes import CLEANUP
from parlab.rank.engine import supervisor
from parlab.runtime.paths import MEMORY
from tests.conftest import wait_until
from tests.support.kernel import Notebook, Ran
from tests.support.nightly import cases


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    """Provide a kernel for tests that do not end it. Each test starts the ranks that it needs."""
    notebook = Notebook()
    yield notebook
    notebook.shutdown()


def started(notebook: Notebook, n: int) -> None:
    ran = notebook.run(f"from parlab import cluster\ncluster.start({n})")
    assert ran.status == "ok", ran.message
    assert ran.text.startswith(f"{n} rank")


def processes_of(notebook: Notebook) -> list[psutil.Process]:
    """Return all processes of the notebook's ranks, even if they are not the kernel's children."""
    ran = notebook.run(
        "from psutil import Process\n"
        "processes = cluster.current().ranks.processes\n"
        "heads = [processes.cluster.controller.pid,\n"
        "         processes.cluster.engine_set.pid, processes.cleanup.pid]\n"
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


@pytest.mark.nightly
def test_ranks_load_the_client_and_the_debugger_only_when_asked(kernel: Notebook) -> None:
    """They would take a third of the processor time of a start."""
    started(kernel, 2)
    unused = "'parlab.cluster', 'ipyparallel.client', 'debugpy'"
    # A rank that would import them before it answers could be given up on a busy machine.
    waits = kernel.run("%%px --timeout 1 --targets 0\nfrom parlab.rank import comm\ncomm.Barrier()")
    assert waits.error == "DeadlineExceeded"
    ran = kernel.run(f"%%px\nimport sys\nprint([m for m in ({unused}) if m in sys.modules])")
    assert ran.text == "[all ranks] []\n", ran.message
    ran = kernel.run(
        "%%px --timeout 60\nimport debugpy, ipyparallel\n"
        "from ipyparallel.client.client import Client\n"
        "print(ipyparallel.Client is Client, ipyparallel.interactive.__name__)"
    )
    assert ran.text == "[all ranks] True interactive\n", ran.message


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


@pytest.mark.nightly
def test_one_rank_and_more_ranks_than_cores(kernel: Notebook):
    for n in (1, (os.cpu_count() or 1) + 3):
        started(kernel, n)
        ran = kernel.run("%%px\nfrom parlab.rank import comm\nprint(comm.allreduce(1))")
        assert ran.text == (f"[all ranks] {n}\n" if n > 1 else "1\n"), ran.message


def test_starting_again_ends_the_first_ranks(kernel: Notebook):
    started(kernel, 2)
    first = processes_of(kernel)
    assert kernel.run("%%px\nimport math").status == "ok"
    ran = kernel.run("cluster.start(3)")
    assert "the imports and variables of earlier `%%px` cells" in ran.text, ran.text
    wait_until(lambda: not alive(first), 60, "the end of the first ranks")
    assert kernel.run("%px __import__('parlab.rank').rank.world_size").text == "[all ranks] 3\n"


@pytest.mark.nightly
def test_ranks_start_if_the_client_misses_their_registration(kernel: Notebook):
    """On a busy machine, engines may register just before the client's subscription begins."""
    keep = "import ipyparallel as ipp\nregister = ipp.Client._register_engine\n"
    kernel.run(f"{keep}ipp.Client._register_engine = lambda *_: None")
    try:
        started(kernel, 2)
    finally:
        kernel.run("ipp.Client._register_engine = register")


@pytest.mark.nightly
def test_ranks_start_if_the_controller_does_not_list_them():
    """The controller's process for heartbeats has ended, as if its port had been taken."""
    notebook = Notebook()
    ran = notebook.run(
        "import threading, psutil\n"
        "ended = threading.Event()\n"
        "def controllers():\n"
        "    for one in psutil.Process().children(recursive=True):\n"
        "        try:\n"
        "            if 'ipyparallel.controller' in one.cmdline():\n"
        "                yield one\n"
        "        except psutil.NoSuchProcess: pass\n"
        "def end_the_first():\n"
        "    while not ended.is_set():\n"
        "        found = {one.pid: one for one in controllers()}\n"
        "        for one in found.values():\n"
        "            if one.ppid() in found:\n"
        "                one.kill()\n"
        "                ended.set()\n"
        "threading.Thread(target=end_the_first, daemon=True).start()\n"
        "from parlab import cluster\n"
        "cluster.start(2)\n"
        "print('ended' if ended.is_set() else 'nothing was ended')"
    )
    assert ran.status == "ok", ran.message
    assert "2 ranks" in ran.text and "\nended" in ran.text, ran.text
    assert notebook.run("%%px\nprint(1)").text == "[all ranks] 1\n"
    processes = processes_of(notebook)
    notebook.shutdown()
    wait_until(lambda: not alive(processes), 60, "the end of every process of the ranks")


@pytest.fixture
def controller_met(kernel: Notebook) -> Iterator[Callable[[str], Ran]]:
    """Return a function that starts two ranks and runs code when their controller is listening."""

    def start(do: str) -> Ran:
        return kernel.run(
            "import os, threading, psutil\n"
            "from parlab import cluster\n"
            "from parlab.cluster.processes import Processes\n"
            "connect = Processes._connect\n"
            "def meet(self, *arguments):\n"
            "    controller = self.cluster.controller\n"
            "    while not all(map(os.path.exists, controller.connection_files.values())):\n"
            "        pass\n"
            "    controller = psutil.Process(controller.pid)\n"
            f"    {do}\n"
            "    return connect(self, *arguments)\n"
            "Processes._connect = meet\n"
            "cluster.start(2)"
        )

    yield start
    kernel.run("Processes._connect = connect")


@pytest.mark.nightly
def test_ranks_start_if_the_controller_is_too_busy_to_answer(kernel, controller_met):
    """By default, engines wait for five seconds, and a client for ten."""
    do = "controller.suspend(); threading.Timer(15, controller.resume).start()"
    ran = controller_met(do)
    assert ran.status == "ok", ran.message
    assert kernel.run("%%px\nprint(1)").text == "[all ranks] 1\n"


@pytest.mark.nightly
def test_a_controller_that_ends_while_ranks_start_is_reported(kernel, controller_met):
    ran = controller_met("controller.kill()")
    assert ran.error == "ControllerFailed", ran.message
    assert "ipyparallel's controller failed" in ran.message
    assert "Try cluster.start() again" in ran.message and "printed: " in ran.message
    assert ran.seconds < 60  # less than a busy controller gets
    kernel.run("Processes._connect = connect")
    started(kernel, 2)


@pytest.mark.parametrize("of", cases(["registration", "control", "mux", "task"], {"control"}))
def test_ranks_start_if_another_program_took_a_port_of_the_controller(kernel: Notebook, of):
    """The controller ends, or continues without a part. A new one chooses other ports."""
    number = ["control", "mux", "task"].index(of) if of != "registration" else None
    ran = kernel.run(
        "import socket\n"
        "from parlab import cluster\n"
        "from parlab.cluster import processes\n"
        "cluster.stop()\n"
        "taken = [socket.create_server(('127.0.0.1', 0)) for _ in range(8)]\n"
        "ports = [one.getsockname()[1] for one in taken]\n"
        f"pool, number = {'engine' if number is None else 'client'!r}, {number or 0}\n"
        "option = f'--IPController.{pool}_ports=' + ','.join(map(str, ports))\n"
        "for index, one in enumerate(taken):\n"
        "    if index != number:\n"
        "        one.close()\n"
        "processes.CONTROLLER_ARGS.append(option)\n"
        "kill = processes.Processes.kill\n"
        "ends = []\n"
        "def free(self):\n"
        "    ends.append(kill(self))\n"
        "    taken[number].close()\n"
        "processes.Processes.kill = free\n"
        "cluster.start(2)\n"
        "print(len(ends), 'ended')"
    )
    kernel.run("processes.Processes.kill = kill\nprocesses.CONTROLLER_ARGS.remove(option)")
    assert ran.status == "ok", ran.message
    assert "1 ended" in ran.text, "the first start did not fail"
    assert kernel.run("%%px\nprint(1)").text == "[all ranks] 1\n"


def test_restart_gives_new_ranks_with_the_imports(kernel: Notebook):
    started(kernel, 2)
    assert kernel.run("%%px\nfrom parlab.rank import comm, rank\nheld = rank").status == "ok"
    ran = kernel.run("cluster.restart()")
    assert ran.status == "ok", ran.message
    ran = kernel.run("%%px\nprint(comm.allreduce(1), 'held' in globals())")
    assert ran.text == "[all ranks] 2 False\n", ran.message


@pytest.mark.parametrize("n", ["0", "-1", "'four'", "2.5", "True"])
def test_an_invalid_number_of_ranks_is_refused(kernel: Notebook, n: str):
    ran = kernel.run(f"from parlab import cluster\ncluster.start({n})")
    assert ran.error == "ValueError"
    assert "number of ranks, 1 or more" in ran.message


def test_cells_without_ranks_say_what_to_do(kernel: Notebook):
    started(kernel, 1)
    assert kernel.run("cluster.stop()").status == "ok"
    ran = kernel.run("%%px\n1")
    assert ran.error == "ClusterError"
    assert "cluster.start()" in ran.message


def test_cells_after_a_start_that_failed_say_what_to_do():
    notebook = Notebook({"OMPI_MCA_btl": "none_such"})
    try:
        ran = notebook.run("from parlab import cluster")
        ran = notebook.run("%%px --timeout 5\n1")
        assert ran.error == "UsageError" and "Run cluster.start(4) first" in ran.text
        ran = notebook.run("cluster.start(2)")
        assert ran.error == "ClusterError"
        ran = notebook.run("%%px --timeout 5\n1")
        assert ran.error == "ClusterError"
        assert "the last start failed. Run cluster.start() again" in ran.message
    finally:
        notebook.shutdown()


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


def test_only_settings_that_this_machine_needs_are_made():
    code = (
        "import os; from parlab import mpirun; os.geteuid = lambda: 1000\n"
        "home = {'HOME': '/home/me'}\n"
        "print(sorted(mpirun.environment(1, home)), sorted(mpirun.environment(10**6, home)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    ordinary, crowded = eval(printed.replace("] [", "], ["))
    assert ordinary == [
        *("MPI4PY_RC_FAST_REDUCE", "OMPI_MCA_btl", "OMPI_MCA_btl_sm_max_send_size"),
        *("OMPI_MCA_osc", "OMPI_MCA_smsc"),
        "OMP_NUM_THREADS",
    ]
    assert set(crowded) - set(ordinary) == {
        "PRTE_MCA_rmaps_default_mapping_policy",
        "OMPI_MCA_threads_pthreads_yield_strategy",
        "OMPI_MCA_threads_pthreads_nanosleep_time",
    }


def test_variables_that_the_user_sets_are_kept():
    from parlab import mpirun

    assert "OMP_NUM_THREADS" not in mpirun.environment(4, {"OMP_NUM_THREADS": "8"})


@pytest.mark.nightly
def test_group_imported_on_some_ranks_only_is_stuck_and_freed(kernel: Notebook):
    started(kernel, 3)
    # The import of torch takes longer than the deadline of the next cell.
    before = "%%px --timeout 120\nimport torch, torch.distributed as dist\n"
    ran = kernel.run(f"{before}from parlab.rank import comm, rank\nheld = rank")
    assert ran.status == "ok", ran.message
    ran = kernel.run("%%px --timeout 3\nif rank != 1:\n    from parlab.rank import group")
    assert ran.error == "DeadlineExceeded"
    assert "ranks 0, 2  line 3: from parlab.rank import group" in ran.message
    assert "variables are intact" in ran.message
    ran = kernel.run(
        "%%px\nfrom parlab.rank import group\n"
        "x = torch.ones(1)\ndist.all_reduce(x, group=group)\ndist.all_reduce(x)\nprint(x, held)"
    )
    assert ran.text == "".join(f"[rank {rank}] tensor([9.]) {rank}\n" for rank in range(3))


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


def test_ranks_start_next_to_files_with_the_names_of_pythons_modules(
    kernel: Notebook, tmp_path: Path
):
    for name in ("random", "socket", "select", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong file')")
    (tmp_path / "mine.py").write_text("x = 5")
    kernel.run(f"import os; before = os.getcwd(); os.chdir({str(tmp_path)!r})")
    try:
        started(kernel, 2)
        assert kernel.run("%%px\nimport random, mine\nmine.x").text == "[all ranks] 5\n"
    finally:
        kernel.run("os.chdir(before)")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        # Not even root can make a file in /proc. (Open MPI's own message would have 40 lines.)
        ("TMPDIR", "/proc", ["cannot write into TMPDIR, /proc"]),
        (
            "OMPI_MCA_btl",
            "none_such",
            ["ended while it was starting: exit status", "error occurred in MPI_"],
        ),
        ("PRTE_MCA_rmaps", "none_such", ["before mpiexec ended", "Component: none_such", "doctor"]),
    ],
    ids=["no space", "no MPI", "no launcher"],
)
def test_a_failed_start_says_why(variable: str, value: str, expected: list[str]) -> None:
    program = "from parlab import cluster; cluster.start(2)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {variable: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode != 0
    assert all(text in ran.stderr for text in expected), ran.stderr


# An mpiexec that finds the folder of a killed mpiexec with the same process ID.
COMES_AFTER = """\
#!/bin/sh
mkdir "$TMPDIR/ompi.$$" && touch "$TMPDIR/ompi.$$/pmix.$(hostname).tool"
exec {mpiexec} "$@"
"""


@pytest.mark.nightly
def test_files_that_a_killed_mpiexec_left_do_no_harm(tmp_path: Path) -> None:
    program = tmp_path / "mpiexec"
    program.write_text(COMES_AFTER.format(mpiexec=mpirun.mpiexec()))
    program.chmod(0o700)
    notebook = Notebook({"TMPDIR": str(tmp_path)})
    try:
        notebook.run(f"from parlab import mpirun\nmpirun.mpiexec = lambda: {str(program)!r}")
        started(notebook, 2)
        ran = notebook.run("%%px\nfrom parlab.rank import comm\nprint(comm.allreduce(1))")
        assert ran.text == "[all ranks] 2\n", ran.message
    finally:
        notebook.shutdown()
    (left,) = tmp_path.glob("ompi.*")
    assert [file.suffix for file in left.iterdir()] == [".tool"]


# Mounts a file system of 100 KiB on folder $1, writes $2 bytes to it, and runs a program.
SMALL = """\
mount -t tmpfs -o size=100k none "$1" || exit 111
head -c "$2" /dev/zero > "$1/full" 2> /dev/null
shift 2
exec "$@"
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("variable", "used", "expected"),
    [
        (
            "TMPDIR",
            200_000,
            "cannot write into TMPDIR, {folder}: it is full, or it is not yours",
        ),
        ("TEMP", 200_000, "cannot write into TEMP, {folder}: it is full, or it is not yours"),
        (
            "TMPDIR",
            60_000,
            "cannot write to {folder}, where ranks may need 2 MiB (No space",
        ),
    ],
    ids=["full", "full by another name", "nearly full"],
)
def test_a_full_folder_for_temporary_files_is_reported(
    tmp_path: Path, variable: str, used: int, expected: str
) -> None:
    program = [sys.executable, "-c", "from parlab import cluster; cluster.start(2)"]
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    others = {name: "" for name in ("TMPDIR", "TEMP", "TMP")}
    ran = subprocess.run(
        [*apart, "sh", "-c", SMALL, "sh", str(tmp_path), str(used), *program],
        env=os.environ | others | {variable: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if ran.returncode == 111 or ran.stderr.startswith("unshare: "):
        pytest.skip(f"a full disk: no file system can be mounted here ({ran.stderr.strip()})")
    assert ran.returncode != 0
    assert f"ClusterError: {expected.format(folder=tmp_path)}" in ran.stderr, ran.stderr


def test_the_output_of_a_launcher_is_known_after_ipyparallel_removed_it(tmp_path: Path) -> None:
    """ipyparallel removes the file when the process ends, perhaps before it is read."""
    launcher = LocalProcessLauncher(work_dir=str(tmp_path))
    launcher.output_file = str(tmp_path / "output")
    file = Path(launcher.output_file)
    file.write_text("at first", encoding="utf-8")
    assert output_of(launcher) == "at first"
    file.write_text("at first, and last", encoding="utf-8")
    assert output_of(launcher) == "at first, and last"
    file.write_text("at first, and last, and as it ended", encoding="utf-8")
    launcher._log_output({"exit_code": 213})
    assert not file.exists()
    assert [output_of(launcher) for _ in range(2)] == ["at first, and last, and as it ended"] * 2
