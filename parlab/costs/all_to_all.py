"""Messages, bytes, and time of experts and of context parallelism.

Liu et al. 2023 (arXiv:2310.01889) for ring attention, Jacobs et al. 2023 (arXiv:2309.14509) for
Ulysses, Fedus et al. 2021 (arXiv:2101.03961, section 2.2) for experts. This models a machine in
order to compare designs, and is not a measurement.
"""

import math

from parlab.costs.algorithms import pairwise_all_to_all
from parlab.costs.collectives import Cost, Link

Spans = list[tuple[float, float]]  # start and duration, in seconds


def hierarchical_all_to_all(
    size: float, nodes: int, ranks_per_node: int, inside: Link, between: Link
) -> float:
    """Return the seconds of an all-to-all in two steps over `nodes` × `ranks_per_node` ranks.

    1. Inside each node, a rank collects what the node sends to ranks with its own position.
    2. Ranks with the same position exchange these collected parts between the nodes.

    `size` is all that one rank sends. Both steps are pairwise exchanges.
    """
    first = pairwise_all_to_all(size, ranks_per_node).seconds(inside)
    return first + pairwise_all_to_all(size, nodes).seconds(between)


def capacity(tokens: int, experts: int, experts_per_token: int, factor: float) -> int:
    """Return how many tokens an expert takes from each rank: the mean load times `factor`.

    Switch, equation 3, rounded up, for `experts_per_token` choices of each of a rank's `tokens`.
    Raises ValueError for a factor that is not above 0.
    """
    if not factor > 0:
        raise ValueError(f"a capacity factor is above 0, not {factor!r}")
    # Without rounding, 1.2 · 10 would be a little more than 12, and the capacity 13.
    return math.ceil(round(factor * tokens * experts_per_token / experts, 9))


def ring_attention(block_bytes: float, ranks: int) -> Cost:
    """Return the cost of one attention layer's messages in both passes, for a split sequence.

    In the forward pass, each rank passes on keys and values N − 1 times, until all ranks have had
    them. In the backward pass, they make the same N − 1 hops again. Their gradients make N hops, of
    which the last one returns them to their owner.

    Args:
        block_bytes: the keys and the values of one rank's tokens, together.
        ranks: number of ranks N on the ring; raises ValueError below 1.
    """
    if ranks < 1:
        raise ValueError(f"a sequence is on at least one rank, not {ranks}")
    if ranks == 1:
        return Cost(0, 0.0)
    hops = (ranks - 1) + (ranks - 1) + ranks
    return Cost(hops, hops * block_bytes)


def expert_layer(token_bytes: float, ranks: int, experts_per_token: int = 1) -> Cost:
    """Return the cost of a layer's four all-to-alls, forward and backward, with balanced experts.

    Each pass sends the tokens to their experts and the results back.

    Args:
        token_bytes: the hidden states of one rank's tokens.
        ranks: number of ranks N that share the experts; raises ValueError below 1.
        experts_per_token: how many experts each token goes to.
    """
    if ranks < 1:
        raise ValueError(f"experts are on at least one rank, not {ranks}")
    to_others = token_bytes * experts_per_token * (ranks - 1) / ranks
    return Cost(4 * (ranks - 1), 4 * to_others)


def key_value_share(heads: int, key_value_heads: int, ranks: int) -> float:
    """Return the size of the keys that Ulysses sends, relative to the queries.

    With more ranks than heads of keys and values, several ranks need a copy of the same head.

    Raises ValueError if the ranks do not divide the heads.
    """
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be divided among {ranks} ranks")
    return max(key_value_heads, ranks) / heads


def ulysses_attention(token_bytes: float, ranks: int, key_value_share: float = 1.0) -> Cost:
    """Return the cost of Ulysses' four all-to-alls for one attention layer, forward and backward.

    Each pass exchanges queries, keys, and values together, and the output.

    Args:
        token_bytes: the queries of one rank's tokens, for all heads.
        ranks: number of ranks N that share a sequence.
        key_value_share: size of the keys, and of the values, relative to the queries.
    """
    there = pairwise_all_to_all((1 + 2 * key_value_share) * token_bytes, ranks)
    back = pairwise_all_to_all(token_bytes, ranks)
    return there + back + there + back


def attention_flop(queries: int, keys: int, hidden: int) -> float:
    """Return the forward FLOP of attention without a mask: two products for all heads."""
    return 4 * queries * keys * hidden


def ring_seconds(ranks: int, compute: float, message: float) -> float:
    """Return the seconds of a pass around the ring with overlap: max(N·c, (N − 1)·m + c).

    Args:
        ranks: number of ranks N, and of blocks.
        compute: seconds c to compute with one block.
        message: seconds m to pass one block on.
    """
    return max(ranks * compute, (ranks - 1) * message + compute)


def ring_schedule(
    ranks: int, compute: float, message: float, *, overlap: bool = True
) -> tuple[Spans, Spans]:
    """Return start and duration of a rank's computations and of its messages around the ring.

    In each of N − 1 steps, the rank computes with its block and passes it on: at the same time if
    `overlap` is true, else one after the other. Finally, it computes with the last block.
    """
    computing: Spans = []
    sending: Spans = []
    now = 0.0
    for step in range(ranks):
        computing.append((now, compute))
        if step < ranks - 1:
            sending.append((now if overlap else now + compute, message))
            now += max(compute, message) if overlap else compute + message
    return computing, sending


def visible_pairs(positions: list[list[int]]) -> list[list[int]]:
    """Count the pairs of a query and a key that a causal mask allows, by rank and ring step.

    Args:
        positions: for each rank, the positions of its tokens in the sequence.

    Returns:
        For each rank, one number for each step. In step i, rank r has the keys of rank r − i.
    """
    ranks = len(positions)
    return [
        [
            sum(key <= query for query in own for key in positions[(rank - step) % ranks])
            for step in range(ranks)
        ]
        for rank, own in enumerate(positions)
    ]
