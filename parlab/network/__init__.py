"""An emulated network: on one machine, messages take the time that they would on a cluster.

In a notebook, `group` on every rank then speaks over a network of 2 nodes of 4 ranks:

    from parlab.network import Link, Network

    network = Network(
        nodes=2, ranks_per_node=4,
        inside=Link.of(alpha=20e-6, bandwidth=1e9),     # seconds; bytes a second
        between=Link.of(alpha=100e-6, bandwidth=100e6),
        call=50e-6,                                     # seconds that each call costs besides
    )
    cluster.start(8, network=network)

On ranks that run already, a group of its own does (collective over all ranks):

    slow = emulated_group(network)
    dist.all_reduce(tensor, group=slow)
    node = sub_group(slow, [0, 1, 2, 3])               # some of its ranks, over the same links

What an operation of such a group does is real: the numbers travel, over MPI or through shared
memory, and ranks that wait for each other wait for ever. When it ends is the model's
(`parlab.costs.networks`): a collective starts when the last rank calls it and the links of all are
free, and takes what its fastest algorithm takes. A message starts when it is sent and both ends'
links are free. Each rank has one link inside its node and one to the others, and what it sends
queues there, as does what it gets. Waiting sleeps: whatever else the rank computes meanwhile goes
on, on one core or on many.

    compute(5e-3)                                # a computation that takes 5 ms, asleep
    stage = Stage(nn.Linear(4, 4), forward=5e-3, backward=10e-3)

take a set time and no core, so that schedules of more ranks than cores can be timed. Tensors are
on the CPU. `comm`, and the default group, are not emulated. Times on an emulated network are no
measurements of a cluster: `emulated("time (ms)")` names them so in texts and pictures.
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
    # Lazy: a notebook that describes a network needs neither torch nor MPI.
    if name not in _MODULES:
        raise AttributeError(f"module 'parlab.network' has no attribute {name!r}")
    return getattr(importlib.import_module(f"parlab.network.{_MODULES[name]}"), name)
