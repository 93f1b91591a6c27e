"""Records emulated passes of a layer with its ranks on one or several nodes, for chapter 04.

    python -m benchmarks.recordings.layers

It writes `book/measurements/layers.json`. The times are emulated: lab 04's f and g send real
messages, and half of a layer takes a fixed time, divided by the number of ranks. The fastest of
many passes counts, because a busy machine can only make a pass slower.
"""

import json
import os
import time
from datetime import date
from typing import TYPE_CHECKING

from benchmarks.recordings import record_on_ranks
from parlab.network import Link, Network, Stage, emulated_group, sub_group
from parlab.runtime.paths import ROOT, write_atomically

if TYPE_CHECKING:
    import torch.distributed as dist

COMMAND = "python -m benchmarks.recordings.layers"
FILE = ROOT / "book" / "measurements" / "layers.json"
RANKS, PASSES = 4, 15
NUMBERS = 131_072  # the size of an activation in float32
FORWARD = 24e-3  # of a whole layer on one rank; backward takes twice as long
INSIDE, BETWEEN = Link.of(0.2e-3, 400e6), Link.of(1e-3, 50e6)
# Numbers of ranks that share the layer, and of nodes on which they are.
PLACES = {
    "one node": [(1, 1), (2, 1), (4, 1)],
    "two nodes": [(1, 1), (2, 2), (4, 2)],
    "a node each": [(1, 1), (2, 2), (4, 4)],
}


def network(nodes: int) -> Network:
    """Return a network of all ranks on this number of nodes."""
    return Network(nodes, RANKS // nodes, INSIDE, BETWEEN)


def fastest(group: "dist.ProcessGroup", ranks: int) -> float:
    """Return the seconds of a layer's forward and backward pass on the ranks of `group`."""
    import torch
    from torch import nn

    from parlab.rank import comm
    from parlab_staff.course.references import definitions

    f, g = definitions("04_tensor_parallel")["f_and_g"](group)
    part = FORWARD / 2 / ranks
    halves = [Stage(nn.Identity(), part, 2 * part) for _ in range(2)]
    seconds = []
    for _ in range(PASSES):
        x = torch.ones(NUMBERS, requires_grad=True)
        comm.Barrier()
        start = time.perf_counter()
        if comm.rank < ranks:
            y = x
            for half in halves:
                y = g(half(f(y)))
            y.sum().backward()
        seconds.append(max(comm.allgather(time.perf_counter() - start)))
    return float(f"{min(seconds):.4g}")


def measure(machine_text: str) -> None:
    """Measure on all ranks. Rank 0 writes the file."""
    from parlab.rank import comm

    record = {
        "what": "emulated: forward and backward pass of a layer between the f and the g of lab 04; "
        f"the fastest of {PASSES}",
        "machine": machine_text,
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
        "command": COMMAND,
        "inside": [INSIDE.alpha, INSIDE.bandwidth],
        "between": [BETWEEN.alpha, BETWEEN.bandwidth],
        "numbers": NUMBERS,
        "forward": FORWARD,
        "seconds": {},
    }
    for name, places in PLACES.items():
        seconds = {}
        for ranks, nodes in places:
            # With two ranks on two nodes, ranks 0 and 1 must be on different nodes.
            whole = emulated_group(network(RANKS if ranks == nodes > 1 else nodes))
            group = whole if ranks == RANKS else sub_group(whole, list(range(ranks)))
            seconds[str(ranks)] = fastest(group, ranks)
        record["seconds"][name] = seconds
    if comm.rank == 0:
        write_atomically(FILE, json.dumps(record, indent=2) + "\n")
        print(f"{FILE.name}: {record['seconds']}")


if __name__ == "__main__":
    record_on_ranks(COMMAND, RANKS, measure)
