"""Ends the processes it was told of when the notebook's kernel ends, however it ends.

The kernel holds the other end of this process's standard input. It writes `+PID` for a process
that must not outlive it and `-PID` for one that has ended well; when the kernel is gone, even by
SIGKILL, the input ends, and every process group still listed is terminated, then killed.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE_SECONDS = 2.0


def signal_groups(pids: set[int], number: int) -> set[int]:
    """Signal each process group; returns those that were still there."""
    alive = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            alive.add(pid)
    return alive


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pids: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        (pids.add if line[0] == "+" else pids.discard)(pid)
    pids = signal_groups(pids, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while pids and time.monotonic() < deadline:
        time.sleep(0.05)
        pids = signal_groups(pids, 0)
    signal_groups(pids, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
