"""The limiter of a sandbox counts threads, files without a name, and data in sockets.

`tests/grading/test_running.py` runs submissions that exceed these limits, some only at night. Here,
a process holds a little of each kind, and the limiter counts exactly that.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parlab_staff.grading.sandbox import limiter
from tests.conftest import wait_until

KIB = 1024
# Programs that hold something until their input ends.
THREADS = """
import threading
for _ in range(5):
    threading.Thread(target=sys.stdin.read).start()
"""
FILE = """
import os, tempfile
file = tempfile.TemporaryFile(dir=sys.argv[1])
file.write(os.urandom(256 * 1024))
os.fsync(file.fileno())
again = os.dup(file.fileno())
"""
SOCKETS = """
import socket
kind, pairs, unread = sys.argv[1], int(sys.argv[2]), bytes(int(sys.argv[3]))
held = [socket.create_server(("127.0.0.1", 0), backlog=100)] if kind == "tcp" else []
for _ in range(pairs):
    if kind == "tcp":
        held.append(socket.create_connection(held[0].getsockname()))
        held.append(held[0].accept()[0])
        held[-2].sendall(unread)
    else:
        types = {"stream": socket.SOCK_STREAM, "datagrams": socket.SOCK_DGRAM}
        held.extend(socket.socketpair(socket.AF_UNIX, types[kind]))
"""
OWN_NETWORK = ["bwrap", "--unshare-net", "--die-with-parent", "--dev-bind", "/", "/"]
USUAL = int(Path("/proc/sys/net/core/wmem_default").read_text(encoding="utf-8"))


@contextmanager
def running(program: str, *arguments: object, below: list[str] | None = None) -> Iterator[int]:
    """Run a program. Yield its process ID as soon as it holds what it should."""
    code = f"import sys\n{program}\nprint('ready', flush=True)\nsys.stdin.read()"
    command = [*(below or []), sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield limiter.family(process.pid)[1 if below else 0]
        process.stdin.close()


def test_threads_count() -> None:
    with running(THREADS) as pid:
        assert limiter.memory_and_threads([pid])[1] == 6


def test_a_file_without_a_name_counts_once(tmp_path: Path) -> None:
    with running(FILE, tmp_path) as pid:
        found = limiter.unnamed([pid])[tmp_path.stat().st_dev]
    assert found == pytest.approx(256 * KIB, rel=0.1)


def test_files_count_and_so_do_the_names_of_empty_ones(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"empty_{number}").touch()
    assert 10 * 512 <= limiter.disk(str(tmp_path)) < 256 * KIB
    (tmp_path / "deep").mkdir()
    with open(tmp_path / "deep" / "large", "wb") as file:
        file.write(os.urandom(256 * KIB))
        os.fsync(file.fileno())
    assert limiter.disk(str(tmp_path)) >= 256 * KIB


def expect_in_sockets(expected: int, kind: str, pairs: int, unread: int = 0) -> None:
    """Require that a process with these sockets in its own network counts `expected` bytes.

    Linux frees the socket with which bubblewrap sets up the network only some time after its end.
    """
    with running(SOCKETS, kind, pairs, unread, below=OWN_NETWORK) as pid:
        wait_until(lambda: limiter.in_sockets(pid) == expected, 20.0, f"{kind}: {expected} bytes")


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    "kind, expected", [("stream", limiter.IN_A_SOCKET), ("datagrams", limiter.DATAGRAMS)]
)
def test_each_kind_of_socket_counts_as_much_as_it_can_hold(kind: str, expected: int) -> None:
    expect_in_sockets(10 * expected * USUAL, kind, 5)


@pytest.mark.needs("bubblewrap")
def test_the_data_that_waits_in_a_network_connection_counts() -> None:
    """Three connections have seven sockets: each has two, and one listens."""
    expect_in_sockets(7 * limiter.IN_A_SOCKET * USUAL + 3 * 1000, "tcp", 3, unread=1000)
