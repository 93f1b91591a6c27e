"""Tensor and sequence parallelism: activations, traffic, and time of a transformer layer.

Symbols: b samples (of a micro-batch), s tokens each, hidden size h, a heads, t ranks that share a
layer, l layers. See Shoeybi et al. 2019 (arXiv:1909.08053) for the split, Narayanan et al. 2021
(arXiv:2104.04473) for FLOP and traffic, Korthikanti et al. 2022 (arXiv:2205.05198) for activations.
This models a machine in order to compare designs, and is not a measurement.
"""

from dataclasses import dataclass

from parlab.costs.collectives import (
    Cost,
    Link,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)

ALL_REDUCES = 4  # in a layer: attention and MLP, forward and backward
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layer:
    """A transformer layer and its input: b samples of s tokens."""

    batch: int
    sequence: int
    hidden: int
    heads: int = 1

    @property
    def numbers(self) -> int:
        """sbh, the count of numbers in an activation between two layers."""
        return self.batch * self.sequence * self.hidden


def activation_bytes(
    layer: Layer, ranks: int = 1, *, sequence_parallel: bool = False, recompute: str = "none"
) -> float:
    """Return the bytes of activations that a rank keeps for a layer, in 16 bits with dropout.

    Korthikanti et al., Table 2: sbh(34 + 5as/h) on one rank; sbh(10 + 24/t + 5as/(ht)) with tensor
    parallelism; sbh/t (34 + 5as/h) with sequence parallelism, too. Selective recomputation leaves
    out the 5as/h. Full recomputation keeps only the layer's input, 2sbh, as in the paper.

    Raises ValueError for a `recompute` that is not in `RECOMPUTE`, and for less than one rank.
    """
    _check(ranks)
    if recompute not in RECOMPUTE:
        raise ValueError(f"no recomputation {recompute!r}: use one of {', '.join(RECOMPUTE)}")
    if recompute == "full":
        return 2 * layer.numbers
    outside = 10 / (ranks if sequence_parallel else 1)
    scores = attention_share(layer) / ranks if recompute == "none" else 0.0
    return layer.numbers * (outside + 24 / ranks + scores)


def attention_share(layer: Layer) -> float:
    """Return 5as/h, the bytes of attention's scores, softmax, and dropout, divided by sbh."""
    return 5 * layer.heads * layer.sequence / layer.hidden


def block_in_numbers(
    batch: int, sequence: int, hidden: int, ranks: int, element_bytes: int
) -> dict[str, float]:
    """Return the bytes that a rank keeps for a block of the labs' GPT: fused attention, no dropout.

    The rank keeps sixteen numbers for each of the sbh numbers in an activation:

    - 4 for the inputs of the two norms and of the two products that are split by columns, complete
      on every rank unless the sequence is sharded;
    - 4 for Q, K, V, and the output of attention;
    - 8 for the input and the output of the MLP's activation.

    The paper's 34 bytes are 16 numbers of 2 bytes, and 2 bytes for the masks of dropout.
    """
    _check(ranks)
    once = element_bytes * batch * sequence * hidden
    return {
        "serial": 16 * once,
        "tensor_parallel": (4 + 12 / ranks) * once,
        "sequence_parallel": 16 * once / ranks,
    }


def layer_in_numbers(
    batch: int, sequence: int, hidden: int, ranks: int, element_bytes: int
) -> dict[str, float]:
    """Return a layer's all-reduces, the bytes of each, and the bytes that a rank sends.

    For comparison, the result also has the bytes of gathering the weights.
    """
    size = element_bytes * batch * sequence * hidden
    return {
        "all_reduces": ALL_REDUCES,
        "bytes": size,
        "sent": layer_cost(size, ranks).bytes,
        "weights": ring_all_gather(element_bytes * 12 * hidden**2, ranks).bytes,
    }


def layer_cost(size: float, ranks: int) -> Cost:
    """Return the cost of a layer's four all-reduces of `size` bytes, on rings, in both passes."""
    _check(ranks)
    once = ring_all_reduce(size, ranks)
    return once + once + once + once


def sequence_layer_cost(size: float, ranks: int, *, gather_again: bool = True) -> Cost:
    """Return the cost of a layer with sequence parallelism: gathers and reduce-scatters of `size`.

    With `gather_again`, ranks do not keep the inputs of products, but gather them again in the
    backward pass.
    """
    _check(ranks)
    gather, scatter = ring_all_gather(size, ranks), ring_reduce_scatter(size, ranks)
    pair = gather + scatter
    total = pair + pair + pair + pair
    return total + gather + gather if gather_again else total


def layer_flop(layer: Layer) -> float:
    """Return a layer's FLOP, forward and backward, without recomputation: 72bsh²(1 + s/(6h))."""
    return 72 * layer.numbers * layer.hidden * (1 + layer.sequence / (6 * layer.hidden))


def attention_recompute_flop(layer: Layer) -> float:
    """Return the FLOP of selective recomputation, which repeats attention's two products: 4bs²h."""
    return 4 * layer.numbers * layer.sequence


def layer_seconds(
    layer: Layer, ranks: int, link: Link, flop_per_second: float, element_bytes: int = 2
) -> tuple[float, float]:
    """Return the seconds of a layer's computation and of its communication, without overlap.

    Each rank computes 1/t of the FLOP. The all-reduces run on rings of `link`.
    """
    compute = layer_flop(layer) / ranks / flop_per_second
    return compute, layer_cost(element_bytes * layer.numbers, ranks).seconds(link)


def chunked(
    compute: float, size: float, ranks: int, link: Link, chunks: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Schedule a product and the all-reduce of its output in equal chunks that overlap.

    The ranks compute the next chunk while they all-reduce the previous one. Every chunk has the
    latency of a whole ring.

    Args:
        compute: seconds of the whole product.
        size: bytes of its output.

    Returns:
        Start and duration, in seconds, of each chunk's computation and of its all-reduce.
    """
    part, sending = compute / chunks, ring_all_reduce(size / chunks, ranks).seconds(link)
    computing = [(i * part, part) for i in range(chunks)]
    reducing: list[tuple[float, float]] = []
    free = 0.0
    for start, duration in computing:
        begin = max(free, start + duration)
        reducing.append((begin, sending))
        free = begin + sending
    return computing, reducing


def hidden_to_pay(
    ranks: int, beta: float, flop_per_second: float, share: float = 1.0, element_bytes: int = 2
) -> float:
    """Return the smallest hidden size for which communication is at most `share` of computation.

    Without latencies and the s/(6h) of attention, their ratio is e(t−1)βF/(9h), because batch and
    sequence cancel.
    """
    return element_bytes * (ranks - 1) * beta * flop_per_second / (9 * share)


def _check(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a layer is on at least one rank, not {ranks}")
