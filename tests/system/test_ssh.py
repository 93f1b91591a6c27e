"""Ranks on machines that ssh reaches, through the profile that `parlab profile ssh` writes.

Both are this machine, with two addresses and an ssh server that the test starts.
"""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlab.setup.doctor.programs import find_daemon
from tests.conftest import wait_until
from tests.support.kernel import Notebook

pytestmark = [pytest.mark.nightly, pytest.mark.needs("ssh")]

PARLAB = Path(sys.executable).with_name("parlab")
# MPI would start ranks on 127.0.0.1 without ssh.
HOSTS = ("127.0.0.2", "127.0.0.3")
# MPI does not know that both are one machine. Waiting ranks must let others run. Shared memory is
# off, because MPI names it by machine and position, which two ranks here share (seen once:
# SIGSEGV).
ONE_MACHINE = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl": "self,tcp"}
SERVER = """
Port {port}
{addresses}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
# sshd needs this folder if it runs as root. Debian creates it when the machine starts.
PRIVILEGE_SEPARATION = Path("/run/sshd")


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    if os.geteuid() or folder.exists():
        yield
        return
    folder.mkdir(mode=0o755)
    try:
        yield
    finally:
        folder.rmdir()


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ssh command that logs in to this machine, with only the test's keys and settings."""
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", folder / key], check=True, timeout=60)
    with socket.create_server((HOSTS[0], 0)) as found:
        port = found.getsockname()[1]
    addresses = "\n".join(f"ListenAddress {host}" for host in HOSTS)
    (folder / "config").write_text(SERVER.format(port=port, addresses=addresses, folder=folder))
    with made(PRIVILEGE_SEPARATION), open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [find_daemon("sshd"), "-D", "-e", "-f", folder / "config"], stdout=log, stderr=log
        )
        try:
            options = ["BatchMode=yes", "StrictHostKeyChecking=no", "LogLevel=ERROR"]
            options += [f"UserKnownHostsFile={folder}/known"]
            command = ["ssh", "-F", "none", "-p", str(port), "-i", str(folder / "user")]
            command += [f"-o{option}" for option in options]
            wait_until(
                lambda: subprocess.run([*command, HOSTS[0], "true"], timeout=60).returncode == 0,
                60,
                f"a login, see {folder}/log",
            )
            yield shlex.join(command)
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture(scope="module")
def kernel(login: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    home = str(tmp_path_factory.mktemp("ipython"))
    environment = os.environ | {"IPYTHONDIR": home}
    hosts = [f"{host}:2" for host in HOSTS]
    for name, command in {"ssh": login, "stranger": f"{login} -l nobody"}.items():
        arguments = ["profile", "ssh", *hosts, "--name", name, "--ssh", command, "--interface=lo"]
        subprocess.run([PARLAB, *arguments], env=environment, check=True, timeout=120)
    notebook = Notebook({"IPYTHONDIR": home} | ONE_MACHINE)
    try:
        assert notebook.run("from parlab import cluster").status == "ok"
        yield notebook
    finally:
        notebook.shutdown()


def test_ranks_start_by_ssh_and_are_freed_from_a_deadlock(kernel: Notebook) -> None:
    ran = kernel.run("cluster.start(4, profile='ssh')")
    assert ran.status == "ok", ran.message
    # Their names are the same, because they are one machine.
    assert ran.text.startswith("4 ranks on 1 node ("), ran.text
    ran = kernel.run(
        "%%px\nimport os\nfrom parlab.rank import comm\nkept = comm.rank\n"
        "print(comm.rank, os.environ['OMPI_COMM_WORLD_LOCAL_SIZE'], 'SSH_CONNECTION' in os.environ)"
    )
    assert ran.text == "".join(f"[rank {rank}] {rank} 2 True\n" for rank in range(4)), ran.message
    ran = kernel.run(
        "%%px --timeout 1\nif comm.rank == 3:\n    comm.recv(source=0)\nelse:\n    comm.Barrier()"
    )
    assert "variables are intact" in ran.message
    assert kernel.run("%%px\nprint(comm.allreduce(kept))").text == "[all ranks] 6\n"


def test_a_refused_login_is_reported(kernel: Notebook) -> None:
    ran = kernel.run("cluster.start(4, profile='stranger')")
    assert ran.error == "ClusterError"
    assert "0 of 4 ranks started" in ran.message
    assert "Permission denied" in ran.message


def test_more_ranks_than_the_machines_have_are_refused(kernel: Notebook) -> None:
    ran = kernel.run("cluster.start(5, profile='ssh')")
    assert ran.error == "ClusterError"
    assert "not enough slots" in ran.message
