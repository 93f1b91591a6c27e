"""Records emulated steps of layouts that a planner has ordered, for chapter 10.

    python -m benchmarks.recordings.layouts

It writes `book/measurements/layouts.json`. The times are emulated: eight ranks on two nodes run the
steps of `parlab.layout_runs`, with real messages and with computations that only take time. The
fastest of several steps counts, because a busy machine can only make a step slower.
"""

import json
import os
from dataclasses import asdict
from datetime import date

from benchmarks.recordings import record_on_ranks
from parlab.costs import layouts as planner
from parlab.layouts import Cluster, Layout, Model
from parlab.network import Link
from parlab.runtime.paths import ROOT, write_atomically

COMMAND = "python -m benchmarks.recordings.layouts"
FILE = ROOT / "book" / "measurements" / "layouts.json"
RANKS, ROUNDS, LAYOUTS = 8, 3, 14
MODEL = Model(layers=4, hidden=64, heads=8, sequence=64, vocabulary=512, batch=16)
INSIDE, BETWEEN = Link.of(0.5e-3, 20e6), Link.of(2e-3, 4e6)
CLUSTER = Cluster(2, RANKS // 2, 1.8e6, 500e6, INSIDE, BETWEEN, call=3e-3)


def chosen() -> list[Layout]:
    """Return layouts that fit, fastest first, each at least 4% slower than the one before."""
    layouts: list[Layout] = []
    for layout in planner.plan(MODEL, CLUSTER):
        seconds = planner.step_seconds(MODEL, layout, CLUSTER)
        if not layouts or seconds > 1.04 * planner.step_seconds(MODEL, layouts[-1], CLUSTER):
            layouts.append(layout)
    return layouts[:LAYOUTS]


def measure(machine_text: str) -> None:
    """Measure on all ranks. Rank 0 writes the file."""
    from parlab.layout_runs import measured_seconds
    from parlab.rank import comm

    layouts = chosen()
    seconds = measured_seconds(MODEL, layouts, CLUSTER, ROUNDS)
    record = {
        "what": f"emulated: seconds of a step of each layout; the fastest of {ROUNDS}",
        "machine": machine_text,
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
        "command": COMMAND,
        "model": asdict(MODEL),
        "cluster": asdict(CLUSTER),
        "steps": [
            {
                "dp": layout.dp,
                "tp": layout.tp,
                "pp": layout.pp,
                "micro_batch": layout.micro_batch,
                "seconds": float(f"{value:.4g}"),
            }
            for layout, value in zip(layouts, seconds, strict=True)
        ],
    }
    if comm.rank == 0:
        write_atomically(FILE, json.dumps(record, indent=2) + "\n")
        print(f"{FILE.name}: {len(layouts)} layouts, {min(seconds):.3g} to {max(seconds):.3g} s")


if __name__ == "__main__":
    record_on_ranks(COMMAND, RANKS, measure)
