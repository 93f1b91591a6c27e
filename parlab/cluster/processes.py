"""Starts and ends the processes of a set of ranks: ipyparallel's controller, mpiexec, engines."""

import contextlib
import json
import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from json import JSONDecodeError
from pathlib import Path

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import BatchSystemLauncher, LauncherError
from ipyparallel.error import EngineError

from parlab import mpirun
from parlab.cluster.batch_job import BatchJob
from parlab.cluster.channel import Channel
from parlab.cluster.errors import ClusterError
from parlab.cluster.folders import make_folder, make_memory_folder
from parlab.cluster.forks import close_in_children
from parlab.cluster.launchers import (
    CONTROLLER_ARGS,
    START_SECONDS,
    has_ended,
    launcher_config,
    output_of,
    send_signal,
    sigint_blocked,
)
from parlab.cluster.report import exit_text
from parlab.profiles.slurm import SlurmRanks
from parlab.runtime.ansi import without_escapes

GRACE_SECONDS = 1.0
POLL_SECONDS = 0.2
# When a client connects, it asks for the list of engines. Later, it is notified of new ones. On a
# busy machine, it can miss engines that register between the two. Then a new client must connect.
CLIENT_SECONDS = 3.0
# The controller lists engines at their first heartbeat, a tenth of a second after they register. In
# one of thousands of starts, the part of the controller for heartbeats does not start, because
# another program takes its port first. Then engines are never listed.
UNLISTED_SECONDS = 10.0
IN_USE = "Address already in use"  # as the controller prints it
REGISTERED = "Completed registration with id"  # as engines print it
CLEANUP = str(Path(__file__).with_name("cleanup.py"))


class ControllerFailed(ClusterError):
    """ipyparallel's controller does not work, but a new one may.

    The controller chooses free ports, and listens on them a second later. If another program has
    taken a port in the meantime, the controller ends, or continues without the part that needs it.
    """


class Processes:
    """One controller and one set of engines.

    They end when `kill` is called, or when the notebook's kernel ends.
    """

    def __init__(
        self,
        n: int,
        profile: str | None,
        channel: Channel,
        environment: Mapping[str, str],
        ended: threading.Event,
    ) -> None:
        """Prepare `n` engines whose supervisors connect to `channel`.

        `environment` is added to the engines' environment. `start` gives up when `ended` is set.
        """
        self.n = n
        self._channel = channel
        self._ended = ended
        self.folder = make_folder(profile)
        # Ranks on other nodes could not use this folder.
        memory = None if profile else make_memory_folder()
        self.batch: BatchJob | None = None  # the job, if the ranks run in one
        folders = (self.folder, memory)
        with sigint_blocked():
            self.cleanup = subprocess.Popen(
                [sys.executable, "-I", "-S", CLEANUP, *map(str, filter(None, folders))],
                stdin=subprocess.PIPE,
                start_new_session=True,  # the stop button signals the kernel's process group
            )
        close_in_children(self.cleanup.stdin)
        try:
            self._configure(profile, environment, memory)
        except Exception as error:  # such as no mpiexec, or a mistake in the profile's file
            self.cleanup.stdin.close()  # it then deletes the folders
            self.cleanup.wait()
            raise ClusterError(f"the ranks cannot start: {error}") from error

    def _configure(
        self, profile: str | None, environment: Mapping[str, str], memory: Path | None
    ) -> None:
        # A profile (Slurm, SSH) has its own launchers, and engines on other nodes. Without a
        # profile, engines start at the same time as the controller and wait for its file.
        local = {"engines": "mpi", "send_engines_connection_env": False}
        self.cluster = ipp.Cluster(
            n=self.n,
            profile_dir=str(self.folder),
            load_profile=bool(profile),
            delay=0,
            controller_args=CONTROLLER_ARGS,
            cluster_file="",
            log_level=logging.CRITICAL,
            **({"controller_ip": "*"} if profile else local),
        )
        self.cluster.shutdown_atexit = False
        # This changes a copy. ipyparallel's own settings also apply to the notebook's next cluster.
        added = {"PARLAB_CHANNEL": self._channel.address, **environment}
        if memory:
            added = mpirun.shared_memory_in(memory) | added
        config = launcher_config(self.cluster, self.folder, bool(profile), added)
        self.cluster.update_config(config)

    def start(self, timeout: float = START_SECONDS) -> ipp.Client:
        """Start everything and wait for all ranks. The caller must call `kill` in any case.

        Raises ClusterError after `timeout` seconds, or as soon as it is clear that ranks will not
        start. Raises ControllerFailed if a new start may succeed. Time in a queue does not count.
        """
        with sigint_blocked():
            self.cluster.start_controller_sync()
            self._guard(self.cluster.controller)
            try:
                self.cluster.start_engines_sync(self.n)
            except LauncherError as error:
                raise ClusterError(str(error)) from None
            self._guard(self.cluster.engine_set)
        if isinstance(self.cluster.engine_set, SlurmRanks):
            self.batch = BatchJob(self.cluster.engine_set)
        deadline = time.monotonic() + timeout
        listed_by = math.inf
        while True:
            client = self._connect(deadline)
            try:
                if self._wait_for_engines(client, CLIENT_SECONDS):
                    self._check_controller()  # engines can register even if it cannot run cells
                    return client
                if self.batch and self.batch.waits:
                    deadline = time.monotonic() + timeout
                if time.monotonic() > listed_by:
                    text = str(self._failure(client, "though all have registered"))
                    raise ControllerFailed(text)
                if listed_by == math.inf and self._have_registered():
                    listed_by = time.monotonic() + UNLISTED_SECONDS
                if time.monotonic() > deadline:
                    raise self._failure(client, f"within {timeout:.0f} s")
            except BaseException:
                client.close()
                raise
            client.close()

    def _connect(self, deadline: float) -> ipp.Client:
        """Wait until the controller answers, and return a client."""
        while True:
            self.check()
            self._check_controller()
            try:
                return self.cluster.connect_client_sync(timeout=CLIENT_SECONDS)
            # JSONDecodeError: the controller has written only part of its file.
            except (RuntimeError, TimeoutError, JSONDecodeError) as error:
                text = f"ipyparallel's controller: {error}{self.printed()}"
                if isinstance(error, RuntimeError):
                    raise ControllerFailed(text) from None
                if time.monotonic() > deadline:
                    raise ClusterError(text) from None

    def _wait_for_engines(self, client: ipp.Client, seconds: float) -> bool:
        """Wait for all engines, at most `seconds`. Return True if `client` knows all of them."""
        started = client.wait_for_engines(self.n, block=False, interactive=False)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            self._check_job()
            # ipyparallel reports this in the event loop of this thread, which does not run here.
            if has_ended(self.cluster.engine_set):
                raise self._failure(client, "before mpiexec ended")
            self._check_controller()
            try:
                started.result(POLL_SECONDS)
                return True
            except TimeoutError:
                continue
            except EngineError:
                raise self._failure(client, "before mpiexec ended") from None
        return False

    def _have_registered(self) -> bool:
        """Return True if all engines have printed that they registered.

        Return False if their launcher does not keep what they print.
        """
        with contextlib.suppress(Exception):
            return output_of(self.cluster.engine_set).count(REGISTERED) >= self.n
        return False

    def _check_controller(self) -> None:
        """Raise ControllerFailed if the controller has ended, or printed that a port was taken."""
        text = ""
        with contextlib.suppress(Exception):  # some launchers do not keep the output
            text = without_escapes(output_of(self.cluster.controller))
        if has_ended(self.cluster.controller) or IN_USE in text:
            raise ControllerFailed(
                "ipyparallel's controller failed, and the ranks cannot start without it. Try "
                "cluster.start() again. `parlab doctor` shows what is missing on this machine. The "
                "controller printed: " + (text[-2000:].strip() or "nothing")
            )

    def _check_job(self) -> None:
        if self.batch and (job := self.batch.query()) and job.has_ended:
            raise ClusterError(f"{job}, before all ranks had started{self.printed()}")

    def check(self) -> None:
        """Raise ClusterError if a rank has ended, or the ranks were stopped."""
        if self._ended.is_set():
            raise ClusterError("the ranks were stopped while they were starting")
        if deaths := self._channel.deaths():
            rank, status = next(iter(deaths.items()))
            raise ClusterError(
                f"rank {rank} ended while it was starting: {exit_text(status)}.{self.printed()}"
            )

    def _failure(self, client: ipp.Client, when: str) -> ClusterError:
        return ClusterError(
            f"{len(client.ids)} of {self.n} ranks started {when}. `parlab doctor` shows what is "
            f"missing on this machine.{self.printed()}"
        )

    def printed(self) -> str:
        """Return a newline and the last output of mpiexec and the ranks.

        If they printed nothing, return the controller's output, or "".
        """
        for launcher in (self.cluster.engine_set, self.cluster.controller):
            with contextlib.suppress(Exception):  # launchers of batch jobs may not keep the output
                if text := without_escapes(output_of(launcher))[-2000:].strip():
                    return f"\n{text}"
        return ""

    def _guard(self, launcher: object) -> None:
        if isinstance(launcher, BatchSystemLauncher):
            self._list_for_cleanup("+", [*launcher.delete_command, launcher.job_id])
        elif (pid := getattr(launcher, "pid", None)) and pid > 0:
            self._list_for_cleanup("+", pid)

    def _list_for_cleanup(self, sign: str, entry: int | list[str]) -> None:
        with contextlib.suppress(OSError):
            self.cleanup.stdin.write(f"{sign}{json.dumps(entry)}\n".encode())
            self.cleanup.stdin.flush()

    def kill(self) -> None:
        """End the controller and mpiexec. The ranks' supervisors have already ended the ranks.

        Both processes get a moment to delete their files.
        """
        launchers = [x for x in (self.cluster.controller, self.cluster.engine_set) if x]
        if self.cluster.controller:
            send_signal(self.cluster.controller, signal.SIGTERM)
        for launcher in launchers:
            if getattr(launcher, "process", None) is not None:
                with contextlib.suppress(psutil.TimeoutExpired):
                    launcher.process.wait(GRACE_SECONDS)
                send_signal(launcher, signal.SIGKILL)
                self._list_for_cleanup("-", launcher.pid)
            elif isinstance(launcher, BatchSystemLauncher):  # the cleanup process cancels its job
                if self.batch and not self.batch.waits:
                    self.batch.wait_for_end(GRACE_SECONDS)
            else:
                with contextlib.suppress(Exception):
                    self.cluster.stop_engines_sync()
        self.cluster.controller = None
        self.cluster.engines.clear()
        with contextlib.suppress(OSError):
            self.cleanup.stdin.close()
        self.cleanup.wait()
