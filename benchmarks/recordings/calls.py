"""Records the constant overhead of a collective's call, without messages, for chapter 02.

    python -m benchmarks.recordings.calls

A single rank sends nothing, so an asynchronous all-reduce of one number takes only the time of the
call. It writes `book/measurements/calls.json`. The fastest quarter of the calls counts, which other
work on the machine does not affect.
"""

import json
import statistics
import tempfile
import time
from datetime import date

import torch
import torch.distributed as dist

from benchmarks import machine
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.calls"
FILE = ROOT / "book" / "measurements" / "calls.json"
CALLS = 10_000


def one_call(number: torch.Tensor) -> float:
    """Return the seconds from the call of an all-reduce to the end of its `wait`."""
    start = time.perf_counter()
    dist.all_reduce(number, async_op=True).wait()
    return time.perf_counter() - start


def main() -> None:
    """Measure in this process, with a group of one rank."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        seconds = sorted(one_call(torch.zeros(1)) for _ in range(CALLS))
        dist.destroy_process_group()
    fastest = statistics.median(seconds[: CALLS // 4])
    record = {
        "what": "an asynchronous all-reduce of one number over Gloo, by one rank alone: median of "
        "the fastest quarter of the calls",
        "machine": machine.description(),
        "date": date.today().isoformat(),
        "command": COMMAND,
        "seconds": float(f"{fastest:.3g}"),
    }
    write_atomically(FILE, json.dumps(record, indent=2) + "\n")
    print(f"{FILE.name}: {1e6 * fastest:.1f} µs a call")


if __name__ == "__main__":
    main()
