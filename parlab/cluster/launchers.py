"""Configures ipyparallel's launchers, and reads the output and state of their processes."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import BatchSystemLauncher, LocalProcessLauncher, MPILauncher
from traitlets.config import Config

from parlab import mpirun
from parlab.rank.engine import supervisor
from parlab.runtime.environment import harmful

START_SECONDS = 120.0
CONTROLLER_ARGS = [
    # Engines are registered at a heartbeat. The default of 3 s would be most of the start time.
    "--HeartMonitor.period=100",
    # Supervisors report deaths. A missed heartbeat only means that the machine is busy.
    "--HeartMonitor.max_heartmonitor_misses=36000",
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    # By default, the controller keeps in memory what each of the last 1,024 cells has printed.
    "--IPController.db_class=NoDB",
]
ENGINE_ARGS = [
    "--IPEngine.enable_nanny=False",
    "--IPEngine.max_heartbeat_misses=0",
    # By default, an engine ends if the controller is too busy to answer within 5 s.
    f"--IPEngine.timeout={START_SECONDS:.0f}",
]


def launcher_config(
    cluster: ipp.Cluster, folder: Path, has_profile: bool, environment: Mapping[str, str]
) -> Config:
    """Return the settings for the launchers of the controller and the engines.

    Args:
        folder: the folder of this set of ranks.
        has_profile: True if a profile says where engines run.
        environment: variables to add for engines.
    """
    engines = cluster.engine_launcher_class.__name__
    local = Config()
    local[engines].engine_cmd = [
        *(sys.executable, "-I", "-S", supervisor.__file__),
        # A file in the working folder may have the name of one of Python's modules (-P).
        *(sys.executable, "-P", "-m", "parlab.rank.engine"),
    ]
    local[engines].engine_args = ENGINE_ARGS
    if issubclass(cluster.engine_launcher_class, BatchSystemLauncher):
        local[engines].batch_file_name = str(folder / "job.sh")
        local[engines].output_file = str(folder / "job.log")
    controller = cluster.controller_launcher_class.__name__
    # These variables replace inherited ones. An empty variable counts as not set.
    unset = dict.fromkeys(harmful(), "")
    local[controller].environment = {
        **unset,
        "PYTHONSAFEPATH": "1",
        **cluster.config[controller].get("environment", {}),
    }
    # On other nodes, only the profile knows the folders and the number of ranks on a node.
    for_ranks = mpirun.environment(cluster.n, folder=folder)
    local[engines].environment = {
        **unset,
        **(mpirun.environment(None) if has_profile else for_ranks),
        **(_setting(cluster, "environment") or {}),
        **environment,
    }
    if not has_profile:
        file = f"security/ipcontroller-{cluster.cluster_id}-engine.json"
        local[engines].environment["PARLAB_CONNECTION_FILE"] = str(folder / file)
        local[engines].mpi_cmd = [mpirun.mpiexec()]
        local[engines].mpi_args = mpirun.MPI_ARGS
    elif issubclass(cluster.engine_launcher_class, MPILauncher):
        command = _setting(cluster, "mpi_cmd") or ["mpiexec"]
        if command == ["mpiexec"] or command == [mpirun.mpiexec()]:
            local[engines].mpi_cmd = [mpirun.mpiexec()]
            arguments = _setting(cluster, "mpi_args") or []
            local[engines].mpi_args = [*mpirun.MPI_ARGS, *arguments]
    return local


def _setting(cluster: ipp.Cluster, name: str) -> Any:
    """Return a setting of the profile for its engine launcher, or for a base class of it."""
    for kind in cluster.engine_launcher_class.mro():
        if kind.__name__ in cluster.config and name in cluster.config[kind.__name__]:
            return cluster.config[kind.__name__][name]
    return None


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes that are started in this context.

    Such a process soon gets its own session, which the stop button does not signal. Until then, it
    belongs to the kernel's session. Engines unblock SIGINT when they start.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def output_of(launcher: LocalProcessLauncher) -> str:
    """Return all that a launcher's process has printed so far.

    ipyparallel reads the file once and keeps the text. When the process ends, ipyparallel reads the
    file, if it has not done so, and removes it.
    """
    kept, launcher._output = launcher._output, None
    text = launcher.get_output(remove=False) or kept or ""
    launcher._output = None if os.path.isfile(launcher.output_file) else text
    return text


def has_ended(launcher: Any) -> bool:
    """Return True if the launcher's process on this machine has ended, False if it has none."""
    process = getattr(launcher, "process", None)
    with contextlib.suppress(psutil.NoSuchProcess):
        return process is not None and process.status() == psutil.STATUS_ZOMBIE
    return True


def send_signal(launcher: Any, number: int) -> None:
    """Send a signal to the launcher's process and the processes that it started."""
    if getattr(launcher, "pid", -1) > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(launcher.pid, number)
