"""The messages of each kind of parallelism in the same training step, for comparison.

The step trains a transformer without dropout on one sequence for each rank, in 16 bits. All
collectives except all-to-alls use rings. This models a machine, and is not a measurement.
"""

from dataclasses import dataclass

from parlab.costs import pipeline_parallel, tensor_parallel, zero
from parlab.costs.all_to_all import expert_layer, ring_attention
from parlab.costs.collectives import Cost, Link
from parlab.costs.tensor_parallel import Layer

ELEMENT_BYTES = 2
NAMES = ("data", "zero 3", "tensor", "sequence", "context", "pipeline", "expert")
EXPERTS_PER_TOKEN = 2


@dataclass(frozen=True)
class Transformer:
    """A transformer with `layers` equal layers. Embeddings are left out."""

    layers: int
    hidden: int
    sequence: int

    @property
    def parameters(self) -> int:
        """12lh² (Narayanan et al. 2021, equation 2, without its smaller terms)."""
        return 12 * self.layers * self.hidden**2

    def flop(self, ranks: int, experts_per_token: int = 1) -> float:
        """Return the FLOP of one rank in a step with one sequence for each rank.

        With experts, each token passes through `experts_per_token` MLPs in each layer. Each MLP
        takes 16bsh² FLOP in the forward pass, and twice as many in the backward pass.
        """
        layer = Layer(ranks, self.sequence, self.hidden)
        more = 48 * layer.numbers * layer.hidden * (experts_per_token - 1)
        return self.layers * (tensor_parallel.layer_flop(layer) + more) / ranks


def step_cost(
    name: str,
    model: Transformer,
    ranks: int,
    *,
    experts_per_token: int = EXPERTS_PER_TOKEN,
) -> Cost:
    """Return the messages and bytes that a rank sends in a step over `ranks`, for one of `NAMES`.

    A pipeline has one micro-batch for each sequence, and its numbers are for a rank in the middle.
    With experts, every layer has them, and the gradients of other parameters are not counted.

    Raises ValueError for any other name.
    """
    whole = ELEMENT_BYTES * Layer(ranks, model.sequence, model.hidden).numbers  # of all sequences
    weights = ELEMENT_BYTES * model.parameters
    if name == "data":
        return zero.step_cost(weights, ranks, 0)
    if name == "zero 3":
        # Each layer is gathered and reduced by itself.
        return _times(zero.step_cost(weights / model.layers, ranks, 3), model.layers)
    if name == "tensor":
        return _times(tensor_parallel.layer_cost(whole, ranks), model.layers)
    if name == "sequence":
        return _times(tensor_parallel.sequence_layer_cost(whole, ranks), model.layers)
    if name == "context":
        return _times(ring_attention(2 * whole / ranks, ranks), model.layers)
    if name == "pipeline":
        return pipeline_parallel.sent_by(min(1, ranks - 1), ranks, ranks, whole / ranks)
    if name == "expert":
        return _times(expert_layer(whole / ranks, ranks, experts_per_token), model.layers)
    raise ValueError(f"no kind of parallelism {name!r}: use one of {', '.join(NAMES)}")


def share_of_compute(
    name: str, model: Transformer, ranks: int, link: Link, flop_per_second: float
) -> float:
    """Return a rank's seconds of sending divided by its seconds of computing, without overlap."""
    experts = EXPERTS_PER_TOKEN if name == "expert" else 1
    compute = model.flop(ranks, experts) / flop_per_second
    return step_cost(name, model, ranks).seconds(link) / compute


def _times(cost: Cost, count: int) -> Cost:
    return Cost(cost.rounds * count, cost.bytes * count, cost.reduced * count)
