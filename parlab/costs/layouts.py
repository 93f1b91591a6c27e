"""Memory and time of a layout with data, tensor, and pipeline parallelism and ZeRO-1.

This is lab 10's planner, with the formulas of the chapter. Symbols: b sequences in a micro-batch, s
tokens each, hidden size h, V tokens of the vocabulary, t tensor-parallel ranks, p stages, d
replicas, and m micro-batches of a replica. Korthikanti et al. 2022 (arXiv:2205.05198) for
activations, Narayanan et al. 2021 (arXiv:2104.04473) for the pipeline, Rajbhandari et al. 2020
(arXiv:1910.02054) for ZeRO-1. This models a machine in order to compare layouts, and is not a
measurement.
"""

import itertools
import math
from collections.abc import Iterator

from parlab.layouts import ELEMENT_BYTES, Cluster, Layout, Model

STATE_BYTES = 12  # of Adam for each parameter: a float32 copy and two moments


def parameters_of_stage(model: Model, layout: Layout) -> float:
    """Return the parameters on a rank of the first stage, which also has the embedding."""
    layers = model.layers / layout.pp * model.layer_parameters / layout.tp
    return layers + model.embedding_parameters


def memory(model: Model, layout: Layout) -> dict[str, float]:
    """Return the bytes by kind on a rank of the first stage, which needs the most, in 16 bits."""
    parameters = parameters_of_stage(model, layout)
    in_flight = min(layout.micro_batches(model), layout.pp)
    numbers = model.activation_numbers(layout.micro_batch)
    return {
        "weights": ELEMENT_BYTES * parameters,
        "gradients": ELEMENT_BYTES * parameters,
        "optimizer": STATE_BYTES * parameters / layout.dp,
        "activations": in_flight * model.layers / layout.pp * numbers * (10 + 24 / layout.tp),
    }


def stage_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return F + B, the seconds of both passes of a micro-batch through a stage."""
    size = ELEMENT_BYTES * model.activation_numbers(layout.micro_batch)
    compute = 3 * model.layer_flop(layout.micro_batch) / layout.tp / cluster.flop_per_second
    reduce = cluster.collective_seconds("all_reduce", size, range(layout.tp))
    return model.layers / layout.pp * (compute + 4 * reduce)


def message_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return the seconds of all messages that a step waits for.

    A stage has at most p micro-batches in flight, so p of them go through all stages and back
    before the next p can.
    """
    size = ELEMENT_BYTES * model.activation_numbers(layout.micro_batch)
    firsts = [stage * layout.tp for stage in range(layout.pp)]
    one_way = sum(cluster.message_seconds(size, *pair) for pair in itertools.pairwise(firsts))
    return math.ceil(layout.micro_batches(model) / layout.pp) * 2 * one_way


def gradient_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return the seconds of ZeRO-1's reduce-scatter of gradients and all-gather of weights."""
    size = ELEMENT_BYTES * parameters_of_stage(model, layout)
    ranks = range(0, layout.devices, layout.tp * layout.pp)
    return sum(
        cluster.collective_seconds(name, size, ranks) for name in ("reduce_scatter", "all_gather")
    )


def step_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return the seconds of a step: (m + p − 1)(F + B), messages, and gradients."""
    passes = layout.micro_batches(model) + layout.pp - 1
    return (
        passes * stage_seconds(model, layout, cluster)
        + message_seconds(model, layout, cluster)
        + gradient_seconds(model, layout, cluster)
    )


def possible(model: Model, devices: int) -> Iterator[Layout]:
    """Yield all layouts of these devices that divide heads, layers, and the batch."""
    for tp in _divisors(devices):
        for pp in _divisors(devices // tp):
            dp = devices // (tp * pp)
            if model.heads % tp or model.layers % pp or model.batch % dp:
                continue
            for micro_batch in _divisors(model.batch // dp):
                yield Layout(dp, tp, pp, micro_batch)


def plan(model: Model, cluster: Cluster) -> list[Layout]:
    """Return the layouts that fit into the memory of the devices, fastest first.

    Raises ValueError if none fits.
    """
    needs = {
        layout: sum(memory(model, layout).values()) for layout in possible(model, cluster.devices)
    }
    fitting = [layout for layout, need in needs.items() if need <= cluster.memory]
    if not fitting:
        least = (
            f"the smallest needs {min(needs.values()):,.0f}" if needs else "none divides the model"
        )
        raise ValueError(f"no layout fits into {cluster.memory:,.0f} bytes: {least}")
    return sorted(fitting, key=lambda layout: step_seconds(model, layout, cluster))


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]
