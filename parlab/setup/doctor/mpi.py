"""Examines MPI by starting two real ranks and freeing them from a call that blocks."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from parlab import mpirun
from parlab.setup.doctor.finding import Finding

DEADLINE, TERMINATION = 60, 10  # seconds for the ranks to answer, and then to end
_PROBE = """
import json
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
stuck = world.Dup()
stuck.Barrier()
if world.rank == 1:
    stuck.Revoke()
try:
    stuck.recv(source=world.rank)
except MPI.Exception as error:
    freed = error.Get_error_class() == MPI.ERR_REVOKED
if world.rank == 0:
    name, version = MPI.get_vendor()
    found = {"total": total, "freed": freed, "mpi": f"{name} {'.'.join(map(str, version))}"}
    print(json.dumps(found))
"""


def ranks() -> Finding:
    """Start two ranks, sum a number over them, and revoke a communicator on which they wait."""
    start = time.monotonic()
    code, out, err = _run_probe()
    seconds = time.monotonic() - start
    message = _first_words(err) or _first_words(out) or "no message"
    if code is None:
        return Finding(
            "fail",
            f"2 ranks did not answer within {DEADLINE} s",
            f"{_whose()} It printed: {message}",
        )
    try:
        found = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return Finding(
            "fail",
            f"2 ranks did not start (exit code {code}: {message})",
            _whose(),
        )
    works = f"{found['mpi']}; 2 ranks started and computed a sum in {seconds:.1f} s"
    if found["total"] != 1 + 2:
        found_sum = f"{found['mpi']}; 2 ranks started, but their sum is {found['total']}, not 3"
        return Finding("fail", found_sum, "Remove .venv, then `make setup`.")
    if not found["freed"]:
        return Finding(
            "note",
            f"{works}; no ULFM",
            "After a deadlock, the ranks start again, and their variables are lost.",
        )
    return Finding(
        "ok", f"{works}; ULFM works", "A deadlocked cell ends, and its ranks keep their variables."
    )


def _whose() -> str:
    """Return which MPI was tried, because nothing else is known about why it does not start."""
    used = Path(mpirun.mpiexec())
    if used.parent == Path(sys.executable).parent:
        return "This is the course's own MPI. Fix other failures first, or install .venv again."
    return f"{used} was used instead of the course's own MPI. Remove .venv, and run `make setup`."


def _run_probe() -> tuple[int | None, str, str]:
    """Run the probe on two ranks. Return its exit code (None at the deadline), stdout, stderr."""
    with mpirun.own_folder(2) as variables:
        process = subprocess.Popen(
            mpirun.command(2, sys.executable, "-c", _PROBE),
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        try:
            out, err = process.communicate(timeout=DEADLINE)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            process.terminate()  # mpiexec then ends its ranks, which it could not do if killed
        try:
            out, err = process.communicate(timeout=TERMINATION)
        except subprocess.TimeoutExpired:  # a wrapper may have ended alone
            process.kill()
            process.wait()
            out = err = ""
        return None, out, err


def _first_words(text: str) -> str:
    """Return the first line with letters. Open MPI prints a rule above the line with the cause."""
    return next((line.strip() for line in text.splitlines() if any(map(str.isalpha, line))), "")
