"""Tensor and sequence parallelism: activations, traffic and time of a transformer layer.

Symbols: b samples (of a micro-batch), s tokens each, hidden size h, a heads, t ranks that share a
layer, l layers. Shoeybi et al. 2019 (arXiv:1909.08053) for the cut, Narayanan et al. 2021
(arXiv:2104.04473) for FLOP and traffic, Korthikanti et al. 2022 (arXiv:2205.05198) for activations.
A model of a machine, to compare designs with; not a measurement.
"""

from dataclasses import dataclass

from parlab.costs.collectives import (
    Cost,
    Link,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)

ALL_REDUCES = 4  # of a layer: attention and MLP, forward and backward
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layer:
    """A transformer layer, and what goes through it: b samples of s tokens."""

    batch: int
    sequence: int
    hidden: int
    heads: int = 1

    @property
    def numbers(self) -> int:
        """sbh: numbers of an activation between two layers."""
        return self.batch * self.sequence * self.hidden


def activation_bytes(
    layer: Layer, ranks: int = 1, *, sequence_parallel: bool = False, recompute: str = "none"
) -> float:
    """Bytes of activations that a rank keeps of a layer, in 16 bits with dropout.

    Korthikanti et al., Table 2: sbh(34 + 5as/h) on one rank; sbh(10 + 24/t + 5as/(ht)) with tensor
    parallelism; sbh/t (34 + 5as/h) with sequence parallelism too. Selective recomputation leaves
    out the 5as/h. Full recomputation keeps the layer's input, 2sbh, as the paper has it.

    Raises ValueError for a `recompute` that is none of `RECOMPUTE`, and without ranks.
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
    """5as/h: bytes of attention's scores, softmax and dropout, for each number of sbh."""
    return 5 * layer.heads * layer.sequence / layer.hidden


def block_in_numbers(
    batch: int, sequence: int, hidden: int, ranks: int, element_bytes: int
) -> dict[str, float]:
    """Bytes that a rank keeps of a block of the labs' GPT: fused attention, no dropout.

    Sixteen numbers for each of sbh: inputs of two norms and of the two products cut by columns (4,
    whole on every rank, unless the sequence is sharded); Q, K, V and what attention gives (4); the
    input and the output of the MLP's activation (8). That is the paper's 34 = 16·2 + 2 bytes of
    dropout masks.
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
    """A layer's all-reduces, bytes of each, what a rank sends; and what gathered weights are."""
    size = element_bytes * batch * sequence * hidden
    return {
        "all_reduces": ALL_REDUCES,
        "bytes": size,
        "sent": layer_cost(size, ranks).bytes,
        "weights": ring_all_gather(element_bytes * 12 * hidden**2, ranks).bytes,
    }


def layer_cost(size: float, ranks: int) -> Cost:
    """The four all-reduces of a layer, forward and backward, on rings; `size` bytes each."""
    _check(ranks)
    once = ring_all_reduce(size, ranks)
    return once + once + once + once


def sequence_layer_cost(size: float, ranks: int, *, gather_again: bool = True) -> Cost:
    """The same with sequence parallelism: gathers and reduce-scatters, `size` bytes each.

    With `gather_again` the inputs of products are not kept, but gathered once more backward.
    """
    _check(ranks)
    gather, scatter = ring_all_gather(size, ranks), ring_reduce_scatter(size, ranks)
    pair = gather + scatter
    total = pair + pair + pair + pair
    return total + gather + gather if gather_again else total


def layer_flop(layer: Layer) -> float:
    """FLOP of a layer, forward and backward, nothing recomputed: 72bsh²(1 + s/(6h))."""
    return 72 * layer.numbers * layer.hidden * (1 + layer.sequence / (6 * layer.hidden))


def attention_recompute_flop(layer: Layer) -> float:
    """FLOP of attention's two products once more, as selective recomputation does: 4bs²h."""
    return 4 * layer.numbers * layer.sequence


def layer_seconds(
    layer: Layer, ranks: int, link: Link, flop_per_second: float, element_bytes: int = 2
) -> tuple[float, float]:
    """Seconds of a layer's computation and of its communication, which does not overlap.

    Each rank computes 1/t of the FLOP; the all-reduces go around rings of `link`.
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
    """The hidden size from which communication is at most `share` of the computation.

    e(t−1)βF/(9h) is their ratio, without latencies and the s/(6h) of attention: batch and sequence
    cancel.
    """
    return element_bytes * (ranks - 1) * beta * flop_per_second / (9 * share)


def _check(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a layer is on at least one rank, not {ranks}")
