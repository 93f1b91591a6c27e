"""The parent of one sandbox: ends it when it takes too much, or when the grader goes.

    python warden.py ENDED FOLDER PARENT MEMORY PROCESSES DISK COMMAND…

Runs COMMAND. When its processes together hold more than MEMORY bytes, are more than PROCESSES, or
have written more than DISK bytes into FOLDER, kills them all. It writes to the file ENDED, as
JSON, which limit that was ("" for none), and what was last written to stderr.

It stands outside of the sandbox, which cannot reach it, and imports nothing but Python's own: to
start in some 20 ms. It ends when process PARENT ends.

Control groups would do it, where the grader may make some; in a container or for an ordinary user
it mostly may not.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading

POLL_SECONDS = 0.2
PAGE = os.sysconf("SC_PAGE_SIZE")
FILE_BYTES = 2**30  # of one file
PR_SET_PDEATHSIG = 1
SAID_BYTES = 4000


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when process `parent` ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def humbled() -> None:
    """In the child, before the sandbox: last to run, first to go when the machine has no memory."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def family(pid: int) -> list[int]:
    """`pid` and all that descend from it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat") as file:
                # pid (name) state parent …; a name may hold anything.
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def memory(pids: list[int]) -> int:
    """Bytes that they hold, without the files that they share with the machine."""
    held = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
            held += resident - shared
    return held * PAGE


def disk(folder: str) -> int:
    """Bytes in the files below `folder`; names count as well, so that empty files add up."""
    total = 0
    for path, folders, files in os.walk(folder):
        for name in folders + files:
            with contextlib.suppress(OSError):
                total += 512 + os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def excess(child: int, folder: str, limits: tuple[int, int, int]) -> str:
    """What it takes too much of, in words; "" when all is well."""
    most_memory, most_processes, most_disk = limits
    pids = family(child)
    if len(pids) > most_processes:
        return f"it started more than {most_processes} processes"
    if memory(pids) > most_memory:
        return f"it held more than {most_memory / 2**30:.1f} GiB of memory"
    if disk(folder) > most_disk:
        return f"it wrote more than {most_disk / 2**20:.0f} MiB beside the kernel's sockets"
    return ""


def main(ended: str, folder: str, *rest: str) -> int:
    limits = (int(rest[1]), int(rest[2]), int(rest[3]))
    die_with_parent(int(rest[0]))
    child = subprocess.Popen(
        rest[4:],
        env={},  # the first process in the sandbox would show the grader's to all others
        preexec_fn=humbled,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    said = bytearray()

    def listen() -> None:
        # To the end, or what it writes would block it; only the tail is kept.
        while more := os.read(child.stderr.fileno(), 65536):
            said.extend(more)
            del said[:-SAID_BYTES]

    threading.Thread(target=listen, daemon=True).start()
    reason = ""
    while child.poll() is None and not reason:
        reason = excess(child.pid, folder, limits)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_SECONDS)
    child.kill()
    status = child.wait()
    with open(ended, "w") as file:
        json.dump({"limit": reason, "said": said.decode(errors="replace")}, file)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
