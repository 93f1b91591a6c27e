"""Records steps of lab 02's class with buckets of several sizes, emulated, for chapter 02.

    python -m benchmarks.recordings.buckets

It writes `book/measurements/buckets.json`. The times are emulated. The fastest of many steps
counts, because a busy machine can only make a step slower.
"""

import json
import os
import time
from datetime import date

from benchmarks.recordings import record_on_ranks
from parlab.network import Link, Network, Stage, emulated_group
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.buckets"
FILE = ROOT / "book" / "measurements" / "buckets.json"
RANKS, STEPS = 4, 20
LAYERS, WIDTH, LAYER_SECONDS = 24, 160, 5e-3
BUCKETS = [24, 12, 8, 6, 4, 3, 2, 1]  # numbers of equal buckets
NETWORK = Network(2, 2, Link.of(0.2e-3, 100e6), Link.of(1e-3, 20e6), call=2e-3)


def measure(machine_text: str) -> None:
    """Measure on all ranks. Rank 0 writes the file."""
    import torch
    from torch import nn

    from parlab.rank import comm
    from parlab_staff.course.references import definitions

    group = emulated_group(NETWORK)
    make_parallel = definitions("02_data_parallel")["BucketedDataParallel"]
    gradient_bytes = LAYERS * 4 * WIDTH * WIDTH
    fastest = []
    for buckets in BUCKETS:
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        model = nn.Sequential(*(Stage(layer, 0, LAYER_SECONDS) for layer in layers))
        parallel = make_parallel(model, group, bucket_bytes=gradient_bytes // buckets)
        assert len(parallel.buckets) == buckets
        seconds = []
        for _ in range(STEPS):
            loss = parallel(torch.zeros(1, WIDTH)).sum()
            comm.Barrier()
            start = time.perf_counter()
            loss.backward()
            parallel.finish()
            seconds.append(max(comm.allgather(time.perf_counter() - start)))
        fastest.append(float(f"{min(seconds):.4g}"))
    if comm.rank != 0:
        return
    record = {
        "what": f"emulated: from the start of a backward pass until all gradients are summed, by "
        f"the class of lab 02; the fastest of {STEPS} steps",
        "machine": machine_text,
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
        "command": COMMAND,
        "network": NETWORK.as_dict(),
        "backward": LAYERS * LAYER_SECONDS,
        "gradient_bytes": gradient_bytes,
        "buckets": BUCKETS,
        "seconds": fastest,
    }
    write_atomically(FILE, json.dumps(record, indent=2) + "\n")
    row = ", ".join(f"{n}: {1e3 * t:.0f} ms" for n, t in zip(BUCKETS, fastest, strict=True))
    print(f"{FILE.name}: emulated, by number of buckets: {row}")


if __name__ == "__main__":
    record_on_ranks(COMMAND, RANKS, measure)
