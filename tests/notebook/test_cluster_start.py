"""Ranks start on any machine, or the message says why they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ipyparallel.cluster.launcher import LocalProcessLauncher

from parlab import mpirun
from parlab.cluster.launchers import output_of
from tests.support.kernel import Notebook
from tests.support.notebook_ranks import started


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


@pytest.mark.nightly
def test_one_rank_and_more_ranks_than_cores(kernel: Notebook):
    for n in (1, (os.cpu_count() or 1) + 3):
        started(kernel, n)
        ran = kernel.run("%%px\nfrom parlab.rank import comm\nprint(comm.allreduce(1))")
        assert ran.text == (f"[all ranks] {n}\n" if n > 1 else "1\n"), ran.message


@pytest.mark.parametrize("n", ["0", "-1", "'four'", "2.5", "True"])
def test_an_invalid_number_of_ranks_is_refused(kernel: Notebook, n: str):
    ran = kernel.run(f"from parlab import cluster\ncluster.start({n})")
    assert ran.error == "ValueError"
    assert "number of ranks, 1 or more" in ran.message


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


def test_a_folder_for_temporary_files_can_be_set_in_the_notebook(
    kernel: Notebook, tmp_path: Path
) -> None:
    """Python remembers the first one, and ipykernel asks for it in each cell."""
    kernel.run(f"%env TMPDIR={tmp_path}")
    ran = kernel.run("from parlab import cluster\ncluster.start(1)")
    assert ran.status == "ok", ran.message
    assert (
        kernel.run("%%px\nimport tempfile\ntempfile.gettempdir()").text
        == f"{tmp_path!s}".join("''") + "\n"
    )


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
