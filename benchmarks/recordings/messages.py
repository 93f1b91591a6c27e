"""Records the times of messages between two ranks of this machine, for chapter 01.

    python -m benchmarks.recordings.messages

It writes `book/measurements/messages.json`, and refuses to measure on a busy machine.
"""

import json
import sys
import time
from datetime import date

from benchmarks import machine
from parlab import mpirun
from parlab.runtime.paths import ROOT

COMMAND = "python -m benchmarks.recordings.messages"
FILE = ROOT / "book" / "measurements" / "messages.json"
SIZES = [8 * 2**k for k in range(21)]  # 8 bytes to 8 MiB
OTHER_TAG = 7
RECEIVER_IS_LATE = 0.05  # seconds


def largest_eager(comm) -> int:
    """Return the bytes of the largest message that `Send` buffers. Collective."""
    low, high = 1, 2**20  # the result is at least `low` and less than `high`
    while high - low > 1:
        size = (low + high) // 2
        # A busy machine can only make a send slower.
        if any([_returns_early(size, comm) for _ in range(3)]):
            low = size
        else:
            high = size
    return low


def _returns_early(size: int, comm) -> bool:
    import numpy as np

    message = np.zeros(size, dtype=np.uint8)
    comm.Barrier()
    start = time.perf_counter()
    if comm.rank == 0:
        comm.Send(message, dest=1)
    else:
        # Exchange other messages meanwhile, because MPI handles arriving data only during calls.
        while time.perf_counter() - start < RECEIVER_IS_LATE:
            comm.Iprobe(source=0, tag=OTHER_TAG)
        comm.Recv(message, source=0)
    return comm.bcast(time.perf_counter() - start < RECEIVER_IS_LATE / 2)


def measure(machine_text: str) -> None:
    """Measure on two ranks. Rank 0 writes the file."""
    from mpi4py import MPI

    from parlab_staff.course.references import definitions

    lab, comm = definitions("01_mpi"), MPI.COMM_WORLD
    lab["ping_pong"](8, 2000, comm)
    seconds = [lab["ping_pong"](size, 1000 if size < 1e5 else 100, comm) for size in SIZES]
    eager = largest_eager(comm)
    if comm.rank != 0:
        return
    alpha, beta = lab["fit_alpha_beta"](SIZES, seconds)
    record = {
        "what": "half of the median round trip of a message between two ranks on one machine",
        "machine": machine_text,
        "date": date.today().isoformat(),
        "command": COMMAND,
        "sizes": SIZES,
        "seconds": [float(f"{value:.4g}") for value in seconds],
        "alpha": float(f"{alpha:.4g}"),
        "beta": float(f"{beta:.4g}"),
        "largest_eager_bytes": eager,
    }
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"{FILE.name}: α = {1e6 * alpha:.2f} µs, 1/β = {1e-9 / beta:.1f} GB/s, eager to {eager}")


def main() -> int:
    """Start the two ranks, if the machine is not busy."""
    if found := machine.disturbances():
        print("This machine is busy, so nothing was measured:", *found, sep="\n  ", file=sys.stderr)
        return 2
    # Describe the machine here, because a rank may be bound to one core.
    program = ["-m", "benchmarks.recordings.messages", machine.description()]
    return mpirun.run(2, *program).returncode


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    else:
        sys.exit(main())
