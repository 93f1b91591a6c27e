"""Messages and bytes of context parallelism and expert parallelism.

Liu et al. 2023 (arXiv:2310.01889) for ring attention, Fedus et al. 2021 (arXiv:2101.03961,
section 2.2) for experts. A model of a machine, to compare designs with; not a measurement.
"""

from parlab.costs.collectives import Cost


def ring_attention(block_bytes: float, ranks: int) -> Cost:
    """The messages of one attention layer, forward and backward, if the sequence is split.

    In the forward pass, each rank passes on the keys and values of all ranks, N − 1 times. In the
    backward pass, they travel again, and with them their gradients, which travel once more to get
    back to their owner.

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
    """The four all-to-alls of a layer of experts, forward and backward, with balanced experts.

    Each pass sends the tokens to their experts, and the results back.

    Args:
        token_bytes: the hidden states of one rank's tokens.
        ranks: number of ranks N that share the experts; raises ValueError below 1.
        experts_per_token: how many experts each token goes to.
    """
    if ranks < 1:
        raise ValueError(f"experts are on at least one rank, not {ranks}")
    to_others = token_bytes * experts_per_token * (ranks - 1) / ranks
    return Cost(4 * (ranks - 1), 4 * to_others)
