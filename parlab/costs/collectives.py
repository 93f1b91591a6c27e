"""What messages and collectives cost in the α–β model.

A message of S bytes takes α + S·β seconds: α to get going, β for each byte (Hockney, *The
communication challenge for MPP*, 1994). A collective runs in rounds; in each, every rank sends
and receives at most one message. What counts is the slowest chain of messages, so an algorithm
is described by two numbers, its rounds and the bytes along that chain:

    time = rounds · α + bytes · β

The additions inside a reduction cost γ seconds a byte more, usually far below β.

Formulas: Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication Operations in
MPICH*, 2005; ring: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
workstations*, 2009.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What connects two ranks: `alpha` seconds a message, `beta` seconds a byte.

    `gamma` is the time to add one byte's worth of received numbers, in seconds a byte.
    """

    alpha: float
    beta: float
    gamma: float = 0.0

    @classmethod
    def of(cls, alpha: float, bandwidth: float) -> "Link":
        """A link of `alpha` seconds a message and `bandwidth` bytes a second.

        Raises ValueError for a bandwidth that is not above 0.
        """
        if not bandwidth > 0:
            raise ValueError(f"a link's bandwidth is in bytes a second, above 0, not {bandwidth!r}")
        return cls(alpha, 1 / bandwidth)

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a very large message reaches; infinite where β is 0."""
        return 1 / self.beta if self.beta else float("inf")

    @property
    def half_size(self) -> float:
        """Bytes of the message that spends half its time on α: it reaches half the bandwidth."""
        return self.alpha / self.beta


@dataclass(frozen=True)
class Cost:
    """What an algorithm needs: `rounds`, and the bytes of the slowest chain of messages.

    `reduced` is how many of those bytes are also added to something on their way.
    """

    rounds: int
    bytes: float
    reduced: float = 0.0

    def seconds(self, link: Link) -> float:
        """Time over `link`, which every pair of ranks has to itself."""
        return self.rounds * link.alpha + self.bytes * link.beta + self.reduced * link.gamma

    def __add__(self, after: "Cost") -> "Cost":
        return Cost(
            self.rounds + after.rounds, self.bytes + after.bytes, self.reduced + after.reduced
        )


def ceil_log2(n: int) -> int:
    """⌈log₂ n⌉: rounds in which one rank can reach n when all that were reached help on."""
    _positive(n)
    return (n - 1).bit_length()


def _positive(n: int) -> None:
    if n < 1:
        raise ValueError(f"a world has at least one rank, not {n}")


def message(size: float) -> Cost:
    """One message of `size` bytes."""
    return Cost(1, size)


def flat_broadcast(size: float, n: int) -> Cost:
    """The root sends `size` bytes to each of the other n − 1 ranks in turn."""
    _positive(n)
    return Cost(n - 1, (n - 1) * size)


def binomial_broadcast(size: float, n: int) -> Cost:
    """Every rank that has the data passes it on: the number of ranks doubles each round."""
    rounds = ceil_log2(n)
    return Cost(rounds, rounds * size)


def scatter_all_gather_broadcast(size: float, n: int) -> Cost:
    """A binomial scatter of chunks and a ring all-gather: for large data (Thakur et al., 3.2)."""
    return Cost(ceil_log2(n), _share(n) * size) + ring_all_gather(size, n)


def binomial_reduce(size: float, n: int) -> Cost:
    """The binomial broadcast run backwards, with an addition in each round."""
    rounds = ceil_log2(n)
    return Cost(rounds, rounds * size, rounds * size)


def ring_reduce_scatter(size: float, n: int) -> Cost:
    """n − 1 rounds of one chunk, size/n bytes; every rank ends with one chunk of the sum."""
    return Cost(n - 1, _share(n) * size, _share(n) * size)


def ring_all_gather(size: float, n: int) -> Cost:
    """n − 1 rounds of one chunk; every rank ends with all n chunks, `size` bytes together."""
    return Cost(n - 1, _share(n) * size)


def ring_all_reduce(size: float, n: int) -> Cost:
    """Reduce-scatter, then all-gather: 2(n−1) rounds and 2(n−1)/n · size bytes, the least."""
    return ring_reduce_scatter(size, n) + ring_all_gather(size, n)


def tree_all_reduce(size: float, n: int) -> Cost:
    """A binomial reduce to one rank and a binomial broadcast from it, all data in each round."""
    return binomial_reduce(size, n) + binomial_broadcast(size, n)


def recursive_doubling_all_reduce(size: float, n: int) -> Cost:
    """All ranks exchange all data with a partner 1, 2, 4, … away and add.

    Where n is no power of two, the ranks beyond the last one first send their data to a partner
    and at the end get the result back: two more rounds.
    """
    rounds, extra = _power_of_two(n)
    return Cost(rounds, rounds * size, rounds * size) + _fold(size, extra)


def halving_doubling_all_reduce(size: float, n: int) -> Cost:
    """Rabenseifner's: exchange half, a quarter, … and add; then gather the same way back.

    The ring's bytes in 2·log₂ n rounds, for n a power of two; else two rounds of all data more.
    """
    rounds, extra = _power_of_two(n)
    share = _share(2**rounds) * size
    return Cost(2 * rounds, 2 * share, share) + _fold(size, extra)


def _share(n: int) -> float:
    """(n−1)/n, the part of the data that is not this rank's own chunk."""
    _positive(n)
    return (n - 1) / n


def _power_of_two(n: int) -> tuple[int, int]:
    """⌊log₂ n⌋ and how many ranks are left over."""
    _positive(n)
    rounds = n.bit_length() - 1
    return rounds, n - 2**rounds


def _fold(size: float, extra: int) -> Cost:
    return Cost(2, 2 * size, size) if extra else Cost(0, 0.0)


def hierarchical_all_reduce(
    size: float, nodes: int, ranks_per_node: int, inside: Link, between: Link
) -> float:
    """Seconds of an all-reduce in three steps over `nodes` × `ranks_per_node` ranks.

    Reduce-scatter on a ring inside each node; then, for every chunk at the same time, a ring
    all-reduce among the ranks of all nodes that hold it; then all-gather inside each node.
    `inside` is the link between two ranks of a node, `between` that of a rank to its partner on
    another node: each rank has a network card of its own.
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
    """Seconds of one ring through all ranks, node after node.

    Every round waits for its slowest message, and with more than one node that one crosses
    between two nodes.
    """
    n = nodes * ranks_per_node
    return ring_all_reduce(size, n).seconds(between if nodes > 1 else inside)


# Bytes that each rank has to send, at least, as a share of the data: with this factor the same
# links give the same bus bandwidth for every collective and world size (NCCL tests, PERFORMANCE).
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
    """Bytes that each rank sends where `size` bytes of data go around a ring of n ranks.

    `size` is the whole data, as in `bus_bandwidth`, which raises for the same names.
    """
    if collective not in BUS_FACTORS:
        raise ValueError(f"no bus factor for {collective!r}: choose from {', '.join(BUS_FACTORS)}")
    return BUS_FACTORS[collective](n) * size


def algorithm_bandwidth(size: float, seconds: float) -> float:
    """Bytes a second as the caller sees it: the data over the time."""
    return size / seconds


def bus_bandwidth(collective: str, size: float, seconds: float, n: int) -> float:
    """Bytes a second that each link carried: comparable with the link's 1/β for any n.

    `size` is the whole data: all n chunks together for an all-gather or reduce-scatter. Raises
    ValueError for a collective that is not in `BUS_FACTORS`.
    """
    return ring_bytes(collective, algorithm_bandwidth(size, seconds), n)
