"""Starts and ends the processes of one set of ranks: ipyparallel's controller, mpiexec, engines."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from traitlets.config import Config

from parlab import mpirun
from parlab.cluster.errors import ClusterError

GRACE_SECONDS = 1.0
HERE = Path(__file__).parent

CONTROLLER_ARGS = [
    # Engines are registered on a heartbeat; the stock one, of 3 s, is most of a stock start.
    "--HeartMonitor.period=100",
    # A rank's death is seen by its supervisor. Heartbeats missed on a busy machine mean nothing.
    "--HeartMonitor.max_heartmonitor_misses=36000",
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
]
ENGINE_ARGS = ["--IPEngine.enable_nanny=False", "--IPEngine.max_heartbeat_misses=0"]


class Processes:
    """One controller and one set of engines; ends with `kill`, or with the notebook's kernel."""

    def __init__(self, n: int, profile: str | None, channel_address: str) -> None:
        self.n = n
        # A profile (Slurm, SSH) has launchers of its own, and engines on other nodes.
        # Here, everything is written to a folder that goes with the ranks.
        self.folder = Path(tempfile.mkdtemp(prefix="parlab-"))
        if profile:
            where = {"profile": profile, "controller_ip": "*"}
        else:
            where = {"profile_dir": str(self.folder), "engines": "mpi"}
            # Engines start beside the controller, and wait for its file.
            where["send_engines_connection_env"] = False
        self.cluster = ipp.Cluster(
            n=n,
            load_profile=bool(profile),
            delay=0,
            controller_args=CONTROLLER_ARGS,
            cluster_file="",
            log_level=logging.CRITICAL,
            **where,
        )
        self.cluster.shutdown_atexit = False
        engines = self.cluster.engine_launcher_class.__name__
        local = Config()
        local[engines].engine_cmd = [
            *(sys.executable, "-I", "-S", str(HERE / "supervisor.py")),
            *(sys.executable, "-m", "parlab.rank.engine"),
        ]
        local[engines].engine_args = ENGINE_ARGS
        local[engines].environment = {
            **mpirun.environment(None if profile else n),
            **self.cluster.config[engines].get("environment", {}),
            "PARLAB_CHANNEL": channel_address,
        }
        if not profile:
            file = f"security/ipcontroller-{self.cluster.cluster_id}-engine.json"
            local[engines].environment["PARLAB_CONNECTION_FILE"] = str(self.folder / file)
            local[engines].mpi_cmd = [mpirun.mpiexec()]
            local[engines].mpi_args = mpirun.MPI_ARGS
        # In a copy: ipyparallel's own is that of the whole notebook, and of its next cluster.
        self.cluster.update_config(local)
        self.reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(HERE / "reaper.py"), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # the stop button signals the kernel's process group
        )

    def start(self, timeout: float = 120.0) -> ipp.Client:
        """Start everything and wait for all ranks. Raises ClusterError after `timeout` seconds."""
        try:
            self.cluster.start_controller_sync()
            self._guard(self.cluster.controller)
            self.cluster.start_engines_sync(self.n)
            self._guard(self.cluster.engine_set)
            client = self.cluster.connect_client_sync()
            self._wait_for_engines(client, timeout)
        except BaseException:
            self.kill()
            raise
        return client

    def _wait_for_engines(self, client: ipp.Client, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(TimeoutError):
                client.wait_for_engines(self.n, timeout=0.5, interactive=False)
                return
            ended = self.cluster.engine_set.state == "after"
            if ended or time.monotonic() > deadline:
                output = self.cluster.engine_set.get_output()[-2000:].strip()
                raise ClusterError(
                    f"{len(client.ids)} of {self.n} ranks started"
                    + ("; mpiexec ended" if ended else f" within {timeout:.0f} s")
                    + "; `parlab doctor` says what this machine lacks."
                    + (f"\n{output}" if output else "")
                )

    def _guard(self, launcher: object) -> None:
        pid = getattr(launcher, "pid", None)
        if pid and pid > 0:
            self._tell_reaper("+", pid)

    def _tell_reaper(self, sign: str, pid: int) -> None:
        with contextlib.suppress(OSError):
            self.reaper.stdin.write(f"{sign}{pid}\n".encode())
            self.reaper.stdin.flush()

    def kill(self) -> None:
        """End controller and mpiexec; the ranks' supervisors have ended the ranks.

        Both get a moment to tidy up (mpiexec its folder, the controller its connection files).
        """
        launchers = [x for x in (self.cluster.controller, self.cluster.engine_set) if x]
        if self.cluster.controller:
            self._signal(self.cluster.controller, signal.SIGTERM)
        for launcher in launchers:
            if getattr(launcher, "process", None) is not None:
                with contextlib.suppress(psutil.TimeoutExpired):
                    launcher.process.wait(GRACE_SECONDS)
                self._signal(launcher, signal.SIGKILL)
                self._tell_reaper("-", launcher.pid)
            else:  # a batch job
                with contextlib.suppress(Exception):
                    self.cluster.stop_engines_sync()
        self.cluster.controller = None
        self.cluster.engines.clear()
        with contextlib.suppress(OSError):
            self.reaper.stdin.close()
        self.reaper.wait()

    @staticmethod
    def _signal(launcher: Any, number: int) -> None:
        if getattr(launcher, "pid", -1) > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(launcher.pid, number)
