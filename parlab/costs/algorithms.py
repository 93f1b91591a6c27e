"""The algorithms for each collective, and which one is the fastest for a given size.

    best("all_reduce", 25e6, 64, link, call=10e-6)    # Choice(algorithm=…, seconds=…)

No algorithm is the best at every size: trees have few rounds, rings send few bytes. Libraries
choose by size, and so does `best`, in the α–β model of `parlab.costs.collectives`.

Sizes are the whole data in bytes: all n chunks of an all-gather, reduce-scatter, gather, or scatter
together, or everything that one rank sends in an all-to-all.

Sources as in `collectives`; Bruck: Bruck, Ho, Kipnis, Upfal and Weathersby, *Efficient algorithms
for all-to-all communications in multiport message-passing systems*, 1997, as in Thakur et al.
"""

from collections.abc import Callable
from typing import NamedTuple

from parlab.costs.collectives import (
    Cost,
    Link,
    binomial_broadcast,
    binomial_reduce,
    ceil_log2,
    halving_doubling_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter_all_gather_broadcast,
    tree_all_reduce,
)


def bruck_all_gather(size: float, n: int) -> Cost:
    """Return the cost if every rank sends all its chunks, twice as many each round, for any n."""
    return Cost(ceil_log2(n), ring_all_gather(size, n).bytes)


def recursive_halving_reduce_scatter(size: float, n: int) -> Cost:
    """Return the cost if all ranks exchange half of the data, a quarter, … with a partner, and add.

    If n is not a power of two, the extra ranks first send all their data to a partner and get their
    chunk back at the end, in two more rounds.
    """
    folded = 2 ** (n.bit_length() - 1)
    share = (folded - 1) / folded * size
    cost = Cost(ceil_log2(folded), share, share)
    return cost if n == folded else cost + Cost(2, size + size / n, size)


def binomial_scatter(size: float, n: int) -> Cost:
    """Return the cost if each rank passes half of its chunks on, starting with the root."""
    return Cost(ceil_log2(n), (n - 1) / n * size)


def binomial_gather(size: float, n: int) -> Cost:
    """Return the cost of a binomial scatter run backward."""
    return binomial_scatter(size, n)


def scatter_bruck_broadcast(size: float, n: int) -> Cost:
    """Return the cost of a binomial scatter of chunks and Bruck's all-gather."""
    return binomial_scatter(size, n) + bruck_all_gather(size, n)


def halving_gather_reduce(size: float, n: int) -> Cost:
    """Return the cost of recursive halving and a binomial gather (Thakur et al., 4.4)."""
    return recursive_halving_reduce_scatter(size, n) + binomial_gather(size, n)


def pairwise_all_to_all(size: float, n: int) -> Cost:
    """Return the cost of n − 1 rounds, in which every rank exchanges a chunk with another one."""
    return Cost(n - 1, (n - 1) / n * size)


def bruck_all_to_all(size: float, n: int) -> Cost:
    """Return the cost of ⌈log₂ n⌉ rounds. A chunk takes a hop for each 1 in its binary distance."""
    hops = sum(distance.bit_count() for distance in range(n))
    return Cost(ceil_log2(n), hops * size / n)


def dissemination_barrier(size: float, n: int) -> Cost:
    """Return the cost of ⌈log₂ n⌉ rounds. In each, every rank signals the rank 1, 2, 4, … away."""
    return Cost(ceil_log2(n), 0.0)


Algorithm = Callable[[float, int], Cost]

# By collective, then by name. If two are equally fast, the first is chosen.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "recursive doubling": recursive_doubling_all_reduce,
        "halving and doubling": halving_doubling_all_reduce,
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
    },
    "reduce_scatter": {
        "recursive halving": recursive_halving_reduce_scatter,
        "ring": ring_reduce_scatter,
    },
    "all_gather": {"Bruck": bruck_all_gather, "ring": ring_all_gather},
    "broadcast": {
        "binomial tree": binomial_broadcast,
        "scatter and Bruck": scatter_bruck_broadcast,
        "scatter and ring": scatter_all_gather_broadcast,
    },
    "reduce": {"binomial tree": binomial_reduce, "halving and gather": halving_gather_reduce},
    "gather": {"binomial tree": binomial_gather},
    "scatter": {"binomial tree": binomial_scatter},
    "all_to_all": {"Bruck": bruck_all_to_all, "pairwise": pairwise_all_to_all},
    "barrier": {"dissemination": dissemination_barrier},
}


class Choice(NamedTuple):
    """The name of an algorithm, and the time of the collective with it, in seconds."""

    algorithm: str
    seconds: float


def candidates(collective: str, size: float, n: int, link: Link) -> list[Choice]:
    """Return every algorithm for `size` bytes on n ranks, where each pair has its own `link`.

    Raises ValueError for a collective that is not in `ALGORITHMS`.
    """
    if collective not in ALGORITHMS:
        raise ValueError(f"no collective {collective!r}: choose from {', '.join(ALGORITHMS)}")
    return [
        Choice(name, algorithm(size, n).seconds(link))
        for name, algorithm in ALGORITHMS[collective].items()
    ]


def best(collective: str, size: float, n: int, link: Link, call: float = 0.0) -> Choice:
    """Return the fastest algorithm for `size` bytes on n ranks, and its seconds.

    `call` is the constant overhead of every call in seconds, which is added once. Raises ValueError
    for a collective that is not in `ALGORITHMS`.
    """
    fastest = min(candidates(collective, size, n, link), key=lambda choice: choice.seconds)
    return fastest._replace(seconds=call + fastest.seconds)
