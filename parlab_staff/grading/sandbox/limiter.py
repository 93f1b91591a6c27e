"""The parent process of one sandbox, which ends it if it uses too much, or if the grader ends.

    python limiter.py ENDED FOLDER PARENT FILTER MEMORY PROCESSES DISK COMMAND…

It runs COMMAND, which calls bubblewrap, with the filter of system calls in the file FILTER. It
kills all processes of the sandbox if they use more than MEMORY bytes, if there are more than
PROCESSES processes and threads, or if they have written more than DISK bytes into FOLDER. It writes
to the file ENDED, as JSON, which limit was exceeded ("" for none), and the last output on stderr.

It runs outside of the sandbox, which cannot access it, and imports only the standard library, so
that it starts in about 20 ms. It ends when process PARENT ends.

Control groups could do this, but a grader that runs in a container, or as an ordinary user, usually
may not create them. Therefore, memory that belongs to no process (in files without a name, and in
sockets) must be counted separately.
"""

import contextlib
import ctypes
import errno
import json
import math
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from typing import BinaryIO

POLL_SECONDS = 0.2
FILE_BYTES = 2**30  # of one file
OPEN_FILES = 1024  # of one process
PR_SET_PDEATHSIG = 1
KEYCTL = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
KILL_FIRST = "1000"  # Linux kills processes with this score first when memory runs out
OUTPUT_BYTES = 4000
# The most data that can wait in a socket, in buffers of the usual size: a full buffer and one more
# message. A socket for datagrams takes eleven messages of that size, each from a different socket,
# which may already be closed.
BUFFER, IN_A_SOCKET, DATAGRAMS = 212_992, 2, 11


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when process `parent` ends in any way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def with_low_priority() -> None:
    """Set limits, a low priority, and a new keyring in the child, before the sandbox starts."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    # Limit open files, because each poll examines all of them.
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    # The keyring of the session has the grader's keys, so this process gets a new one.
    if number := KEYCTL.get(os.uname().machine):
        ctypes.CDLL(None).syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)


def family(pid: int) -> list[int]:
    """Return `pid` and all its descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                # The line is: pid (name) state parent …. The name may contain any character.
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def kill_first_without_memory(pids: list[int]) -> None:
    """Make Linux kill these processes first when memory runs out.

    Set the score again at each call, because processes can change their own.
    """
    for pid in pids:
        path = f"/proc/{pid}/oom_score_adj"
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            if file.read().strip() != KILL_FIRST:
                with open(path, "w", encoding="utf-8") as changed:
                    changed.write(KILL_FIRST)


def memory_and_threads(pids: list[int]) -> tuple[int, int]:
    """Return how many bytes these processes use, and how many threads they have.

    Files shared with the machine do not count. Memory that processes share counts for each of them.
    """
    held = threads = 0
    for pid in pids:
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file,
        ):
            for line in file:
                if line.startswith(("RssAnon:", "RssShmem:")):
                    held += int(line.split()[1]) * 1024
                elif line.startswith("Threads:"):
                    threads += int(line.split()[1])
    return held, threads


def disk(folder: str) -> float:
    """Return the bytes in the files below `folder`. Each file or folder adds 512 for its name.

    Return infinity if something cannot be read, because its path is too long or permission is
    missing.
    """
    total = 0
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            for name in os.listdir(path):
                found = os.lstat(f"{path}/{name}")
                total += 512 + found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(f"{path}/{name}")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # these mean it was just removed
                return math.inf
    return total


def unnamed(pids: list[int]) -> dict[int, int]:
    """Return the bytes, by device, in open files without a name, such as deleted files."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    held: dict[int, int] = {}
    for (device, _), size in found.items():
        held[device] = held.get(device, 0) + size
    return held


def in_sockets(pid: int) -> int:
    """Return the bytes that wait, or could wait, in the sockets of process `pid`'s network.

    Linux reports the waiting bytes of TCP and UDP sockets. For other sockets, count as much as they
    can contain. This includes sockets that no process has open, because they are being sent through
    another socket.
    """
    usual, waiting = BUFFER, 0
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/net/core/wmem_default", encoding="utf-8", errors="replace") as file,
    ):
        usual = int(file.read())  # the filter in `syscalls` prevents larger buffers
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/net/sockstat", encoding="utf-8", errors="replace") as file:
            waiting += IN_A_SOCKET * usual * int(file.readline().split()[2])
        for name in ("tcp", "tcp6", "udp", "udp6"):
            with open(f"/proc/{pid}/net/{name}", encoding="utf-8", errors="replace") as file:
                for line in file.readlines()[1:]:
                    sent, received = line.split()[4].split(":")
                    waiting += int(sent, 16) + int(received, 16)
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="replace") as file:
            datagrams = sum(line.split()[4:5] == ["0002"] for line in file)
            waiting += (DATAGRAMS - IN_A_SOCKET) * usual * datagrams
    return waiting


def excess(child: int, folder: str, limits: tuple[int, int, int]) -> str:
    """Return a description of the limit that the sandbox exceeds; "" if it exceeds none."""
    max_memory, max_processes, max_disk = limits
    pids = family(child)
    kill_first_without_memory(pids)
    held_memory, threads = memory_and_threads(pids)
    if max(threads, len(pids)) > max_processes:
        return f"it started more than {max_processes} processes and threads"
    held = unnamed(pids)
    on_disk = held.pop(os.stat(folder).st_dev, 0)
    for inside in pids[1:2]:  # the first process is bubblewrap itself, outside of the sandbox
        held_memory += in_sockets(inside)
    if held_memory + sum(held.values()) > max_memory:
        return f"it held more than {max_memory / 2**30:.1f} GiB of memory"
    if disk(folder) + on_disk > max_disk:
        return f"it wrote more than {max_disk / 2**20:.0f} MiB next to the kernel's sockets"
    return ""


def filtered(calls: BinaryIO) -> list[str]:
    """Return bubblewrap's options for the filter; none if the file is empty."""
    return ["--seccomp", str(calls.fileno())] if os.fstat(calls.fileno()).st_size else []


def start(command: list[str], calls: int) -> subprocess.Popen[bytes]:
    own = os.getpid()

    def prepare() -> None:
        die_with_parent(own)  # bwrap does this itself, but only after it has started
        with_low_priority()

    return subprocess.Popen(
        command,
        env={},  # all processes in the sandbox can read the environment of its first process
        preexec_fn=prepare,
        pass_fds=(calls,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def main(ended: str, folder: str, *rest: str) -> int:
    limits = (int(rest[2]), int(rest[3]), int(rest[4]))
    die_with_parent(int(rest[0]))
    program, *arguments = rest[5:]
    with open(rest[1], "rb") as calls:
        child = start([program, *filtered(calls), *arguments], calls.fileno())
    output = bytearray()

    def listen() -> None:
        # Read everything, because a full pipe would block the child. Keep only the tail.
        while more := os.read(child.stderr.fileno(), 65536):
            output.extend(more)
            del output[:-OUTPUT_BYTES]

    threading.Thread(target=listen, daemon=True).start()
    reason = ""
    while child.poll() is None and not reason:
        reason = excess(child.pid, folder, limits)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_SECONDS)
    child.kill()
    status = child.wait()
    with open(ended, "w", encoding="utf-8") as file:
        json.dump({"limit": reason, "output": output.decode(errors="replace")}, file)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
