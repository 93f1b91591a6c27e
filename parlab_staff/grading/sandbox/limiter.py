"""The parent of one sandbox: ends it when it uses too much, or when the grader ends.

    python limiter.py ENDED FOLDER PARENT FILTER MEMORY PROCESSES DISK COMMAND…

It runs COMMAND, which is bubblewrap's, with the system calls in the file FILTER. It kills all its
processes when they use more than MEMORY bytes, when they and their threads are more than PROCESSES,
or when they have written more than DISK bytes into FOLDER. It writes to the file ENDED, as JSON,
which limit that was ("" for none), and what was last written to stderr.

It runs outside of the sandbox, which cannot reach it, and imports only the standard library, so
that it starts in some 20 ms. It ends when process PARENT ends.

Control groups would do the same, but in a container, or for an ordinary user, the grader usually
may not make any. So memory that belongs to no process is counted where it can be: in files
without a name, and in sockets.
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
KILL_FIRST = "1000"  # when the machine has no memory left
OUTPUT_BYTES = 4000
# What can wait in a socket, in buffers of the usual size: one that is full, and a message more. One
# for datagrams takes eleven of such a size, each of another that may be closed again.
BUFFER, IN_A_SOCKET, DATAGRAMS = 212_992, 2, 11


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when process `parent` ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def with_low_priority() -> None:
    """Set limits in the child, before the sandbox: low priority, and a keyring of its own."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    # Each poll examines all open files.
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    # The keyring of the session has the grader's keys, so this process gets its own.
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
                # pid (name) state parent …; a name may hold anything.
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def kill_first_without_memory(pids: list[int]) -> None:
    """Let the system end these first when memory runs out, even if a process undid that."""
    for pid in pids:
        path = f"/proc/{pid}/oom_score_adj"
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            if file.read().strip() != KILL_FIRST:
                with open(path, "w", encoding="utf-8") as changed:
                    changed.write(KILL_FIRST)


def memory_and_threads(pids: list[int]) -> tuple[int, int]:
    """Return the bytes that these use, without files shared with the machine; and their threads.

    Memory that several of them share counts for each.
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
    """Return the bytes in the files below `folder`; names count too, so that empty files add up.

    The result is infinite if something is hidden: a path that is too long, or no permission.
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
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # removed just now
                return math.inf
    return total


def unnamed(pids: list[int]) -> dict[int, int]:
    """Return the bytes, by device, in files that are open and have no name (any more)."""
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
    """Return the bytes that wait, or can wait, in the sockets of process `pid`'s network.

    Linux reports what waits in TCP and UDP sockets. Other sockets, also those that no process has
    open because they are being sent through another, count as all that they can contain.
    """
    usual, waiting = BUFFER, 0
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/net/core/wmem_default", encoding="utf-8", errors="replace") as file,
    ):
        usual = int(file.read())  # more is not to be had: see syscalls
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
    """Return what the sandbox uses too much of, in words; "" if nothing."""
    max_memory, max_processes, max_disk = limits
    pids = family(child)
    kill_first_without_memory(pids)
    held_memory, threads = memory_and_threads(pids)
    if max(threads, len(pids)) > max_processes:
        return f"it started more than {max_processes} processes and threads"
    held = unnamed(pids)
    on_disk = held.pop(os.stat(folder).st_dev, 0)
    for inside in pids[1:2]:  # the first is bubblewrap itself, outside
        held_memory += in_sockets(inside)
    if held_memory + sum(held.values()) > max_memory:
        return f"it held more than {max_memory / 2**30:.1f} GiB of memory"
    if disk(folder) + on_disk > max_disk:
        return f"it wrote more than {max_disk / 2**20:.0f} MiB beside the kernel's sockets"
    return ""


def filtered(calls: BinaryIO) -> list[str]:
    """Return bubblewrap's options for the filter; none if the file is empty."""
    return ["--seccomp", str(calls.fileno())] if os.fstat(calls.fileno()).st_size else []


def start(command: list[str], calls: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={},  # the first process in the sandbox would show the grader's to all others
        preexec_fn=with_low_priority,
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
        # Read to the end, or writing would block the child. Keep only the tail.
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
