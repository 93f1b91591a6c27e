"""Measures one benchmark: started on its ranks, or alone, by `python -m benchmarks`.

python -m benchmarks.worker NAME RESULT.json
"""

import json
import os
import sys
import traceback
from pathlib import Path

from benchmarks.harness import Benchmark, Samples, all_benchmarks, measure


def _on_ranks(bench: Benchmark) -> Samples | None:
    """The samples on rank 0, None on the others."""
    from mpi4py import MPI

    from parlab.rank.world import new_communicator

    comm = new_communicator()
    samples = measure(
        bench, together=comm.Barrier, slowest=lambda seconds: comm.allreduce(seconds, op=MPI.MAX)
    )
    return samples if comm.rank == 0 else None


def _alone(bench: Benchmark) -> Samples:
    return measure(bench, together=lambda: None, slowest=lambda seconds: seconds)


def main() -> None:
    name, result = sys.argv[1:]
    bench = next(b for b in all_benchmarks() if b.name == name)
    samples = _on_ranks(bench) if bench.ranks else _alone(bench)
    if samples is not None:
        Path(result).write_text(json.dumps(samples._asdict()))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # MPI's own way out would wait for the other ranks, and they for this one
