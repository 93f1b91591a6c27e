"""Measures benchmarks of one file, one after the other: started by `python -m benchmarks`.

python -m benchmarks.worker TOPIC RESULT.json NAME …

Alone, or on the ranks of all of them. The result has the samples by name, anew after each. With
`--rehearse` for the result, those for GPUs do their work on the CPU, small and unmeasured.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from benchmarks.harness import Benchmark, Samples, measure, of_topic
from parlab.files import write_atomically


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
    topic, result, *names = sys.argv[1:]
    known = {bench.name: bench for bench in of_topic(topic)}
    measured: dict[str, dict[str, list[float]]] = {}
    for bench in (known[name] for name in names):
        if result == "--rehearse":
            for work in bench.set_up(small=True):
                work()
            continue
        samples = _on_ranks(bench) if bench.ranks else _alone(bench)
        if samples is not None:
            measured[bench.name] = samples._asdict()
            write_atomically(Path(result), json.dumps(measured))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # MPI's own way out would wait for the other ranks, and they for this one
