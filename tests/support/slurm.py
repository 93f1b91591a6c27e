"""Starts a Slurm with two nodes on this machine, for tests, even if Slurm already runs here."""

import contextlib
import getpass
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from parlab.setup.doctor.programs import find_daemon
from tests.conftest import wait_until

# The nodes share their cores, and MPI does not know that, so waiting ranks must let others run.
SHARED_CORES = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
READY_SECONDS = 60
NODES = ("n1", "n2")
CORES = 2  # of each node, independent of this machine
CONFIGURATION = """
ClusterName=parlab-test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
SchedulerParameters=sched_interval=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cores} Gres=gpu:2"
)
# GPUs that Slurm allocates. No test computes on them.
GPUS = "NodeName={name} Name=gpu Count=2 File={folder}/gpu[0-1]\n"


@dataclass
class Slurm:
    """A running Slurm. Commands need `environment` to find it."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """Run a Slurm command. Return its output."""
        ran = subprocess.run(
            command,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=READY_SECONDS,
        )
        assert ran.returncode == 0, f"{command}: {ran.stdout}"
        return ran.stdout.strip()

    def processes(self) -> list[str]:
        """Return all processes with this Slurm's environment: services, jobs, and notebooks."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    found.append(f"{process.pid}, {process.status()}: {process.cmdline()}")
        return found

    def files(self) -> list[str]:
        """Return the names of leftover temporary files.

        MPI's files on a node do not count, because MPI cannot always remove them in a canceled job.
        """
        names = [path.name for path in (self.folder / "temporary").iterdir()]
        return [name for name in names if not name.startswith("prted.")]

    def jobs(self) -> list[str]:
        """Return the numbers of all jobs that are waiting, running, or ending."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def idle_nodes(self) -> int:
        return int(self.run("sinfo", "--noheader", "--states=idle", "--format=%D") or 0)


@contextlib.contextmanager
def two_nodes() -> Iterator[Slurm]:
    """Start munge, slurmctld, and two slurmd. At the end, verify that no process or file is left.

    The folder's name is short, because a socket's path has at most 108 characters.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, contextlib.ExitStack() as started:
        folder = Path(name)
        where = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TMPDIR": str(folder / "temporary"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),  # a cache that is kept, so not TMPDIR
        }
        slurm = Slurm(folder, SHARED_CORES | where)
        _configure(folder)

        def start(program: str, *arguments: str) -> None:
            started.enter_context(_daemon(slurm, program, *arguments))

        start(
            "munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        _wait(slurm, (folder / "munge.socket").exists)
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        _wait(slurm, lambda: _answers(slurm) and slurm.idle_nodes() == len(NODES))
        yield slurm
        left = slurm.jobs() + slurm.files()
        assert not left, left
    wait_until(lambda: not slurm.processes(), READY_SECONDS, "the end of all that Slurm started")


def _configure(folder: Path) -> None:
    key = folder / "munge.key"
    key.touch(mode=0o400)
    key.chmod(0o600)
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for name in ("state", "temporary"):
        (folder / name).mkdir()
    controller, *ports = _free_ports(1 + len(NODES))
    nodes = [
        NODE.format(name=name, port=port, cores=CORES)
        for name, port in zip(NODES, ports, strict=True)
    ]
    text = CONFIGURATION.format(
        folder=folder, user=getpass.getuser(), controller_port=controller, nodes="\n".join(nodes)
    )
    (folder / "slurm.conf").write_text(text)
    for gpu in ("gpu0", "gpu1"):
        (folder / gpu).touch()
    gpus = "".join(GPUS.format(name=name, folder=folder) for name in NODES)
    (folder / "gres.conf").write_text(gpus)


def _free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [found.getsockname()[1] for found in sockets]


@contextlib.contextmanager
def _daemon(slurm: Slurm, program: str, *arguments: str) -> Iterator[None]:
    path = find_daemon(program)
    assert path is not None, program
    with open(slurm.folder / f"{program}.out", "ab") as output:
        process = subprocess.Popen(
            [path, *arguments],
            env=os.environ | slurm.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(READY_SECONDS)
        finally:
            process.kill()


def _answers(slurm: Slurm) -> bool:
    with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
        return bool(slurm.run("sinfo", "--noheader"))
    return False


def _wait(slurm: Slurm, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            logs = [f"{log.name}: {log.read_text()[-2000:]}" for log in slurm.folder.glob("*.out")]
            raise TimeoutError("\n".join(["Slurm did not get ready, or idle.", *logs]))
        time.sleep(0.05)
