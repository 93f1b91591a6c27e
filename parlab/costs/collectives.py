"""The costs of messages and collectives in the α–β model.

A message of S bytes takes α + S·β seconds: α to start, and β for each byte (Hockney, *The
communication challenge for MPP*, 1994). A collective runs in rounds. In each round, every rank
sends and receives at most one message. The slowest chain of messages determines the time, so two
numbers describe an algorithm, its rounds and the bytes along that chain:

    time = rounds · α + bytes · β

The additions in a reduction take γ more seconds per byte, which is usually far below β.

Formulas: Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication Operations in
MPICH*, 2005; ring: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
workstations*, 2009.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """The connection of two ranks: `alpha` seconds per message, `beta` seconds per byte.

    `gamma` is the time to add received numbers, in seconds per byte.
    """

    alpha: float
    beta: float
    gamma: float = 0.0

    @classmethod
    def of(cls, alpha: float, bandwidth: float) -> "Link":
        """Return a link with `alpha` seconds per message and `bandwidth` bytes per second.

        Raises ValueError for a bandwidth that is not above 0.
        """
        if not bandwidth > 0:
            raise ValueError(f"a link's bandwidth is in bytes a second, above 0, not {bandwidth!r}")
        return cls(alpha, 1 / bandwidth)

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a very large message; infinite if β is 0."""
        return 1 / self.beta if self.beta else float("inf")

    @property
    def half_size(self) -> float:
        """Bytes of a message for which α is half of the time, so it gets half the bandwidth."""
        return self.alpha / self.beta


@dataclass(frozen=True)
class Cost:
    """The cost of an algorithm: `rounds`, and the bytes along the slowest chain of messages.

    `reduced` is how many of these bytes are also added to other numbers.
    """

    rounds: int
    bytes: float
    reduced: float = 0.0

    def seconds(self, link: Link) -> float:
        """Return the time in seconds if every pair of ranks has its own `link`."""
        return self.rounds * link.alpha + self.bytes * link.beta + self.reduced * link.gamma

    def __add__(self, after: "Cost") -> "Cost":
        return Cost(
            self.rounds + after.rounds, self.bytes + after.bytes, self.reduced + after.reduced
        )


def ceil_log2(n: int) -> int:
    """Return ⌈log₂ n⌉, the rounds in which one rank reaches n ranks if all reached ranks help."""
    _positive(n)
    return (n - 1).bit_length()


def _positive(n: int) -> None:
    if n < 1:
        raise ValueError(f"a world has at least one rank, not {n}")


def message(size: float) -> Cost:
    """Return the cost of one message of `size` bytes."""
    return Cost(1, size)


def flat_broadcast(size: float, n: int) -> Cost:
    """Return the cost if the root sends `size` bytes to each of the other n − 1 ranks in turn."""
    _positive(n)
    return Cost(n - 1, (n - 1) * size)


def binomial_broadcast(size: float, n: int) -> Cost:
    """Return the cost if every rank with the data passes it on: their number doubles each round."""
    rounds = ceil_log2(n)
    return Cost(rounds, rounds * size)


def scatter_all_gather_broadcast(size: float, n: int) -> Cost:
    """Return the cost of a binomial scatter and a ring all-gather, for large data (Thakur, 3.2)."""
    return Cost(ceil_log2(n), _share(n) * size) + ring_all_gather(size, n)


def binomial_reduce(size: float, n: int) -> Cost:
    """Return the cost of a binomial broadcast run backward, with an addition in each round."""
    rounds = ceil_log2(n)
    return Cost(rounds, rounds * size, rounds * size)


def ring_reduce_scatter(size: float, n: int) -> Cost:
    """Return the cost of n − 1 rounds of size/n bytes. Every rank ends with a chunk of the sum."""
    return Cost(n - 1, _share(n) * size, _share(n) * size)


def ring_all_gather(size: float, n: int) -> Cost:
    """Return the cost of n − 1 rounds of size/n bytes. Every rank ends with all `size` bytes."""
    return Cost(n - 1, _share(n) * size)


def ring_all_reduce(size: float, n: int) -> Cost:
    """Return the cost of both halves: 2(n−1) rounds and 2(n−1)/n · size bytes, the minimum."""
    return ring_reduce_scatter(size, n) + ring_all_gather(size, n)


def tree_all_reduce(size: float, n: int) -> Cost:
    """Return the cost of a binomial reduce and broadcast, which send all data in each round."""
    return binomial_reduce(size, n) + binomial_broadcast(size, n)


def recursive_doubling_all_reduce(size: float, n: int) -> Cost:
    """Return the cost if all ranks exchange all data with a partner 1, 2, 4, … away, and add.

    If n is not a power of two, the extra ranks first send their data to a partner and get the
    result back at the end, in two more rounds.
    """
    rounds, extra = _power_of_two(n)
    return Cost(rounds, rounds * size, rounds * size) + _fold(size, extra)


def halving_doubling_all_reduce(size: float, n: int) -> Cost:
    """Return the cost of Rabenseifner's algorithm: recursive halving, then the same in reverse.

    It sends as many bytes as the ring, in 2·log₂ n rounds if n is a power of two. Otherwise, it
    needs two more rounds with all data.
    """
    rounds, extra = _power_of_two(n)
    share = _share(2**rounds) * size
    return Cost(2 * rounds, 2 * share, share) + _fold(size, extra)


def _share(n: int) -> float:
    """Return (n−1)/n, the share of the data that is not this rank's own chunk."""
    _positive(n)
    return (n - 1) / n


def _power_of_two(n: int) -> tuple[int, int]:
    """Return ⌊log₂ n⌋, and the number of ranks beyond that power of two."""
    _positive(n)
    rounds = n.bit_length() - 1
    return rounds, n - 2**rounds


def _fold(size: float, extra: int) -> Cost:
    return Cost(2, 2 * size, size) if extra else Cost(0, 0.0)


def hierarchical_all_reduce(
    size: float, nodes: int, ranks_per_node: int, inside: Link, between: Link
) -> float:
    """Return the seconds of an all-reduce in three steps over `nodes` × `ranks_per_node` ranks.

    1. Each node runs a reduce-scatter on a ring.
    2. For every chunk at the same time, the ranks that hold it on all nodes run a ring all-reduce.
    3. Each node runs an all-gather.

    `inside` is the link between two ranks of a node, and `between` the link of a rank to its
    partner on another node. Each rank has its own network card.
    """
    chunk = size / ranks_per_node
    return (
        ring_reduce_scatter(size, ranks_per_node).seconds(inside)
        + ring_all_reduce(chunk, nodes).seconds(between)
        + ring_all_gather(size, ranks_per_node).seconds(inside)
    )


def flat_ring_all_reduce(
    size: float, nodes: int, ranks_per_node: int, inside: Link, between: Link
) -> float:
    """Return the seconds of one ring through all ranks, node after node.

    Every round waits for its slowest message, which travels between two nodes if there are several.
    """
    n = nodes * ranks_per_node
    return ring_all_reduce(size, n).seconds(between if nodes > 1 else inside)


# The fewest bytes that each rank must send, as a share of the data. With this factor, the same
# links have the same bus bandwidth for all collectives and world sizes (NCCL tests, PERFORMANCE).
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * _share(n),
    "reduce_scatter": _share,
    "all_gather": _share,
    "all_to_all": _share,
    "scatter": _share,
    "gather": _share,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def ring_bytes(collective: str, size: float, n: int) -> float:
    """Return the bytes that each rank sends if `size` bytes go around a ring of n ranks.

    `size` is the whole data, as in `bus_bandwidth`. Raises ValueError for the same names.
    """
    if collective not in BUS_FACTORS:
        raise ValueError(f"no bus factor for {collective!r}: choose from {', '.join(BUS_FACTORS)}")
    return BUS_FACTORS[collective](n) * size


def algorithm_bandwidth(size: float, seconds: float) -> float:
    """Return bytes per second for the caller: the size of the data, divided by the time."""
    return size / seconds


def bus_bandwidth(collective: str, size: float, seconds: float, n: int) -> float:
    """Return the bytes per second on each link. Compare them with the link's 1/β, for any n.

    `size` is the whole data: all n chunks together for an all-gather or reduce-scatter. Raises
    ValueError for a collective that is not in `BUS_FACTORS`.
    """
    return ring_bytes(collective, algorithm_bandwidth(size, seconds), n)
