"""Emulates a network: on one machine, messages take as long as they would take on a cluster.

In a notebook, this makes `group` on every rank use a network of 2 nodes with 4 ranks each:

    from parlab.network import Link, Network

    network = Network(
        nodes=2, ranks_per_node=4,
        inside=Link.of(alpha=20e-6, bandwidth=1e9),     # seconds; bytes per second
        between=Link.of(alpha=100e-6, bandwidth=100e6),
        call=50e-6,                                     # additional seconds for each call
    )
    cluster.start(8, network=network)

On ranks that are already running, make a new group (collective over all ranks):

    slow = emulated_group(network)
    dist.all_reduce(tensor, group=slow)
    node = sub_group(slow, [0, 1, 2, 3])               # some of its ranks, on the same links

Operations of such a group really exchange data, over MPI or through shared memory, and ranks that
wait for each other are really deadlocked. But a model (`parlab.costs.networks`) decides when an
operation ends:

- A collective starts when the last rank has called it and the links of all ranks are free. It takes
  as long as its fastest algorithm.
- A message starts when it is sent and the links at both ends are free.
- Each rank has one link inside its node and one to other nodes. Messages queue at each link,
  separately for each direction.

A rank that waits is asleep, so its other threads can compute.

    compute(5e-3)                                # a computation of 5 ms, in which the rank sleeps
    stage = Stage(nn.Linear(4, 4), forward=5e-3, backward=10e-3)

These two take a fixed time and need no core, so schedules can be timed with more ranks than cores.
Tensors are on the CPU. `comm` and the default group are not emulated. Times on an emulated network
are not measurements of a cluster, so label them in texts and pictures: `emulated("time (ms)")`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from parlab.costs.collectives import Link
from parlab.costs.networks import Network
from parlab.network.clock import compute
from parlab.network.labels import emulated

if TYPE_CHECKING:
    from parlab.network.group import EmulatedGroup
    from parlab.network.registry import emulated_group, sub_group
    from parlab.network.sleeping_layer import Stage

__all__ = [
    "EmulatedGroup",
    "Link",
    "Network",
    "Stage",
    "compute",
    "emulated",
    "emulated_group",
    "sub_group",
]

_MODULES = {
    "EmulatedGroup": "group",
    "Stage": "sleeping_layer",
    "emulated_group": "registry",
    "sub_group": "registry",
}


def __getattr__(name: str) -> Any:
    # Lazy, because a notebook that only describes a network needs neither torch nor MPI.
    if name not in _MODULES:
        raise AttributeError(f"module 'parlab.network' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parlab.network.{_MODULES[name]}"), name)
