"""Defines models and clusters, which lab 10's planner gets, and layouts, from which it chooses.

    model = Model(layers=48, hidden=8192, heads=64, sequence=2048, vocabulary=51200, batch=512)
    cluster = Cluster(
        nodes=8, devices_per_node=8, memory=80e9, flop_per_second=150e12,
        inside=Link.of(alpha=5e-6, bandwidth=250e9),
        between=Link.of(alpha=20e-6, bandwidth=25e9),
    )
    layout = Layout(dp=4, tp=8, pp=2, micro_batch=1)

Ranks are numbered as in the mesh {"dp": …, "pp": …, "tp": …}: the ranks of a tensor-parallel group
are neighbors, and so are the stages of a replica.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from parlab.costs.networks import Link, Network

ELEMENT_BYTES = 2  # of a number in weights, gradients, activations, and messages


@dataclass(frozen=True)
class Model:
    """A GPT and its training: sizes, and the sequences in a step (`batch`, of all replicas)."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int

    @property
    def layer_parameters(self) -> int:
        """The weights of a layer, 12h²: 4h² of attention and 8h² of the MLP, without vectors."""
        return 12 * self.hidden**2

    @property
    def embedding_parameters(self) -> int:
        """The weights of the embedding, Vh, which the output layer shares."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, each counted once."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    def layer_flop(self, micro_batch: int) -> float:
        """Return the FLOP of a layer's forward pass for b sequences: 24bsh² + 4bs²h."""
        tokens = micro_batch * self.sequence
        return tokens * (24.0 * self.hidden**2 + 4.0 * self.sequence * self.hidden)

    def activation_numbers(self, micro_batch: int) -> int:
        """Return how many numbers are in the activations between two layers, bsh."""
        return micro_batch * self.sequence * self.hidden


@dataclass(frozen=True)
class Layout:
    """A way to train a model: the sizes of the mesh, and the sequences in a micro-batch."""

    dp: int
    tp: int
    pp: int
    micro_batch: int

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh, from the outermost dimension to the innermost."""
        return {"dp": self.dp, "pp": self.pp, "tp": self.tp}

    @property
    def devices(self) -> int:
        """The number of devices, dp · tp · pp."""
        return self.dp * self.tp * self.pp

    def micro_batches(self, model: Model) -> int:
        """Return the micro-batches of a replica in a step, m = batch / (dp · micro_batch)."""
        return model.batch // (self.dp * self.micro_batch)

    def __str__(self) -> str:
        return f"dp {self.dp} × tp {self.tp} × pp {self.pp}, micro-batch {self.micro_batch}"


@dataclass(frozen=True)
class Cluster:
    """Equal devices on nodes.

    Attributes:
        memory: bytes of one device.
        flop_per_second: the rate that one device really reaches in matrix products.
        inside, between: the links of a device inside its node and to other nodes.
        call: constant seconds of each message and each collective.
    """

    nodes: int
    devices_per_node: int
    memory: float
    flop_per_second: float
    inside: Link
    between: Link
    call: float = 0.0

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.nodes * self.devices_per_node

    @property
    def network(self) -> Network:
        """The network, which `parlab.network` can emulate."""
        return Network(self.nodes, self.devices_per_node, self.inside, self.between, self.call)

    def message_seconds(self, size: float, source: int, destination: int) -> float:
        """Return the seconds of a message of `size` bytes from one rank to another."""
        return self.network.message(size, source, destination)

    def collective_seconds(self, name: str, size: float, ranks: Sequence[int]) -> float:
        """Return the seconds of a collective of `ranks` with its fastest algorithm, 0 for one rank.

        Args:
            name: `all_reduce`, `reduce_scatter`, or `all_gather`.
            size: bytes of the whole tensor: the input of an all-reduce or a reduce-scatter, and
                the output of an all-gather.
            ranks: the numbers of the ranks in the group, which determine the links.
        """
        if len(ranks) == 1:
            return 0.0
        return self.network.collective(name, size, ranks).seconds
