"""Data, tensor, and pipeline parallelism in the same step: its time and its memory on a device.

Symbols: n = dtp devices, B sequences in a step, b in a micro-batch, m = B/(db) micro-batches. The
formulas are those of Narayanan et al. 2021 (arXiv:2104.04473), sections 3 and 5 and appendix, with
two parts that the paper describes in words only: operations that are limited by memory bandwidth,
and the latencies of messages. This models a machine in order to compare designs, and is not a
measurement.
"""

import math
from dataclasses import dataclass, fields

from parlab.costs.networks import Link
from parlab.costs.tensor_parallel import Layer, activation_bytes
from parlab.layouts import ELEMENT_BYTES, Cluster, Layout, Model

# A100 GPUs with 80 GB, eight on a node, as in the paper: NVLink has 300 GB/s in each direction, and
# each GPU has a network card of 200 Gbit/s. The latencies are assumptions.
A100_PEAK = 312e12
A100_MEMORY_BANDWIDTH = 2.039e12
A100_NVLINK = Link.of(5e-6, 300e9)
A100_NETWORK = Link.of(10e-6, 25e9)

# The micro-batch size and the stages on each rank of the runs of Table 1, by hidden size: from
# examples/sc21/run_table_1.sh in the repository of Megatron-LM. The paper does not report them.
TABLE_1_SETTINGS = {
    2304: (16, 1), 3072: (16, 1), 4096: (16, 1), 6144: (8, 1), 8192: (4, 1),
    10240: (2, 3), 12288: (2, 2), 16384: (1, 2), 20480: (1, 3), 25600: (1, 1),
}  # fmt: skip


# With full recomputation, as in the paper, a layer's forward pass runs twice. The backward pass has
# twice the FLOP of a forward pass.
FORWARDS = 4  # FLOP of a step, over those of a forward pass
PASSES = 3  # that read and write activations, and that have two all-reduces


@dataclass(frozen=True)
class Parts:
    """The seconds of a step on one device, by cause. Their sum is the time of the step."""

    products: float  # matrix products
    elementwise: float  # operations that are limited by memory bandwidth
    tensor: float  # all-reduces of tensor parallelism
    bubble: float
    pipeline: float  # messages between stages
    data: float  # gradients and parameters

    @property
    def total(self) -> float:
        """The seconds of the step."""
        return sum(getattr(self, field.name) for field in fields(self))


def parameters(model: Model) -> float:
    """Return P = 12lh²(1 + 13/(12h) + (V + s)/(12lh)), equation 2."""
    l, h = model.layers, model.hidden  # noqa: E741
    return 12 * l * h**2 * (1 + 13 / (12 * h) + (model.vocabulary + model.sequence) / (12 * l * h))


def step_flop(model: Model) -> float:
    """Return the FLOP of a step, 96Bslh²(1 + s/(6h) + V/(16lh)), equation 3."""
    logits = 6.0 * model.activation_numbers(model.batch) * model.vocabulary
    return FORWARDS * model.layers * model.layer_flop(model.batch) + logits


def best_micro_batch(fixed: float, each: float, samples: float, stages: int) -> float:
    """Return the b that minimizes (B/b + p − 1)(fixed + each·b): √(B·fixed/(each·(p − 1))).

    `samples` is B, the sequences of a replica in a step. The result is not rounded.
    """
    return float("inf") if stages == 1 else (samples * fixed / (each * (stages - 1))) ** 0.5


def step_parts(
    model: Model,
    layout: Layout,
    cluster: Cluster,
    *,
    memory_bandwidth: float = A100_MEMORY_BANDWIDTH,
    chunks: int = 1,
) -> Parts:
    """Return the seconds of a step by cause, with full recomputation.

    A rank's passes of one micro-batch take T. A step takes (m + (p − 1)/v)·T, plus the messages
    between stages that it waits for, plus ZeRO-1's reduce-scatter and all-gather. The FLOP of the
    output layer are spread evenly over the stages. Gradients and parameters are those of a stage
    with the embedding.
    """
    t, p, b = layout.tp, layout.pp, layout.micro_batch
    m, size = layout.micro_batches(model), ELEMENT_BYTES * model.activation_numbers(b)
    layers = model.layers / p
    products = step_flop(model) * b / model.batch / (t * p) / cluster.flop_per_second
    kept = activation_bytes(Layer(b, model.sequence, model.hidden, model.heads), t)
    # Each of the passes reads these bytes once and writes them once.
    elementwise = layers * 2 * PASSES * kept / memory_bandwidth
    tensor = 2 * PASSES * layers * cluster.collective_seconds("all_reduce", size, range(t))
    return Parts(
        products=m * products,
        elementwise=m * elementwise,
        tensor=m * tensor,
        bubble=(p - 1) / chunks * (products + elementwise + tensor),
        pipeline=_hops(m * chunks, p) * _message(cluster, layout, size),
        data=_data(model, layout, cluster),
    )


def flop_rate(model: Model, layout: Layout, parts: Parts) -> float:
    """Return the FLOP that a device computes per second of the step."""
    return step_flop(model) / parts.total / layout.devices


def _hops(micro_batches: int, stages: int) -> int:
    """Return the messages that a step waits for. Groups of p micro-batches go there and back."""
    return math.ceil(micro_batches / stages) * 2 * (stages - 1)


def _message(cluster: Cluster, layout: Layout, size: float) -> float:
    """Return the seconds to send an activation: one part per rank, then an all-gather (4.1)."""
    if layout.pp == 1:
        return 0.0
    gather = cluster.collective_seconds("all_gather", size, range(layout.tp))
    return cluster.message_seconds(size / layout.tp, 0, layout.tp) + gather


def _data(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return the seconds of a reduce-scatter and an all-gather of a rank's parameters."""
    group = range(0, layout.devices, layout.tp * layout.pp)
    layers = model.layers * model.layer_parameters / layout.pp
    size = ELEMENT_BYTES * (layers + model.embedding_parameters) / layout.tp
    return sum(cluster.collective_seconds(n, size, group) for n in ("reduce_scatter", "all_gather"))


def zero3_seconds(model: Model, cluster: Cluster, micro_batch: int) -> tuple[float, float]:
    """Return the seconds of computation and of messages of a step with ZeRO's stage 3 alone.

    Every device is a replica. For each micro-batch, it gathers each layer twice and reduces the
    layer's gradient once. Nothing is recomputed.
    """
    n = cluster.devices
    compute = 3 * model.layers * model.layer_flop(model.batch) / n / cluster.flop_per_second
    size = ELEMENT_BYTES * model.layer_parameters
    gather = cluster.collective_seconds("all_gather", size, range(n))
    reduce = cluster.collective_seconds("reduce_scatter", size, range(n))
    micro_batches = model.batch / (n * micro_batch)
    return compute, micro_batches * model.layers * (2 * gather + reduce)


def zero3_bytes(model: Model, devices: int, micro_batch: int) -> float:
    """Return a device's bytes with ZeRO's stage 3 alone: states, two layers, and activations.

    16 bytes for each parameter are divided among all devices. Activations are 34sbh for each layer.
    """
    whole = 2 * ELEMENT_BYTES * model.layer_parameters  # the layer in use, and the next one
    kept = 34 * model.layers * model.activation_numbers(micro_batch)
    return 16 * model.parameters / devices + whole + kept
