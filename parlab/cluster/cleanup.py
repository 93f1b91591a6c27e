"""Ends the kernel's processes when the notebook's kernel ends, even by SIGKILL.

The kernel holds the other end of this process's standard input. It writes `+PID` for a process
that must not outlive it, and `-PID` when such a process has ended. When the kernel ends, the input
ends. This process then terminates, and later kills, every process group that is still listed.
Instead of a PID, the kernel can write a JSON list. It is a command to run when the kernel ends, for
example to cancel a batch job. Finally, this process deletes the folders that its arguments name.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 2.0
COMMAND_SECONDS = 60.0


def signal_groups(pids: set[int], number: int) -> set[int]:
    """Signal each process group. Return the groups that still exist."""
    alive = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            alive.add(pid)
    return alive


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listed: list[int | list[str]] = []
    for line in sys.stdin:
        entry = json.loads(line[1:])
        listed = [other for other in listed if other != entry]
        if line[0] == "+":
            listed.append(entry)
    for command in [entry for entry in listed if isinstance(entry, list)]:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS)
    pids = {entry for entry in listed if isinstance(entry, int)}
    pids = signal_groups(pids, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while pids and time.monotonic() < deadline:
        time.sleep(0.05)
        pids = signal_groups(pids, 0)
    signal_groups(pids, signal.SIGKILL)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
