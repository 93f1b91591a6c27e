"""The choice of algorithms, and networks of nodes, compared with simulated schedules."""

import itertools
import math

import pytest

from parlab.costs import algorithms, collectives
from parlab.costs.algorithms import ALGORITHMS, best, candidates
from parlab.costs.collectives import Link
from parlab.costs.networks import HIERARCHIES, Network

WORLD_SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16, 64]
SIZE = 1e6
LINK = Link(alpha=2e-6, beta=1e-10)
INSIDE = Link.of(alpha=1e-6, bandwidth=100e9)
BETWEEN = Link.of(alpha=10e-6, bandwidth=10e9)


def network(nodes: int, ranks_per_node: int, call: float = 0.0) -> Network:
    return Network(nodes, ranks_per_node, INSIDE, BETWEEN, call)


# Algorithms


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_bruck_all_gather_as_simulated(n: int) -> None:
    """In each round, a rank sends all its chunks, or only the chunks that the other still lacks."""
    have, rounds, sent = 1, 0, 0
    while have < n:
        passed = min(have, n - have)
        have, rounds, sent = have + passed, rounds + 1, sent + passed
    cost = algorithms.bruck_all_gather(SIZE, n)
    assert cost.rounds == rounds
    assert cost.bytes == pytest.approx(sent * SIZE / n)


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_bruck_all_to_all_as_simulated(n: int) -> None:
    """In round k, each chunk whose remaining distance has the binary digit 2^k moves by 2^k."""
    sent, rounds = 0, 0
    distances = list(range(n))
    for bit in itertools.takewhile(lambda b: b < n, (2**k for k in itertools.count())):
        moving = [d for d in distances if d & bit]
        sent, rounds = sent + len(moving), rounds + 1
        distances = [d - bit if d & bit else d for d in distances]
    assert not any(distances)
    cost = algorithms.bruck_all_to_all(SIZE, n)
    assert (cost.rounds, cost.bytes) == (rounds, pytest.approx(sent * SIZE / n))


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_halving_sends_as_many_bytes_as_the_ring_in_fewer_rounds(n: int) -> None:
    cost = algorithms.recursive_halving_reduce_scatter(SIZE, n)
    assert cost.bytes == pytest.approx(sum(SIZE / 2**k for k in range(1, n.bit_length())))
    assert cost.rounds == math.log2(n)


@pytest.mark.parametrize("collective", ALGORITHMS)
@pytest.mark.parametrize("n", WORLD_SIZES)
def test_no_algorithm_is_below_the_lower_bounds(collective: str, n: int) -> None:
    """Every rank must be reached, in ⌈log₂ n⌉ rounds, and must get or give all but its own part."""
    least = {"all_reduce": 2.0, "barrier": 0.0}.get(collective, 1.0) * (n - 1) / n * SIZE
    for name, algorithm in ALGORITHMS[collective].items():
        cost = algorithm(SIZE, n)
        assert cost.rounds >= math.ceil(math.log2(n)), name
        assert cost.bytes >= least - 1e-6, name


# The choice


@pytest.mark.parametrize("collective", ALGORITHMS)
@pytest.mark.parametrize("size", [0, 8, 1e4, 1e6, 1e9])
@pytest.mark.parametrize("n", WORLD_SIZES)
def test_best_is_the_fastest_candidate(collective: str, size: float, n: int) -> None:
    chosen = best(collective, size, n, LINK)
    assert chosen in candidates(collective, size, n, LINK)
    assert all(chosen.seconds <= c.seconds for c in candidates(collective, size, n, LINK))
    assert best(collective, size, n, LINK, call=1e-3).seconds == pytest.approx(
        chosen.seconds + 1e-3
    )


def test_the_choice_depends_on_size_and_ranks() -> None:
    assert best("all_reduce", 8, 64, LINK).algorithm == "recursive doubling"
    assert best("all_reduce", 1e9, 64, LINK).algorithm == "halving and doubling"
    # Halving with 7 ranks has 3 extra ranks, so that the ring sends the fewest bytes.
    assert best("all_reduce", 1e9, 7, LINK).algorithm == "ring"
    assert best("broadcast", 8, 64, LINK).algorithm == "binomial tree"
    assert best("broadcast", 1e9, 64, LINK).algorithm == "scatter and Bruck"


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="no collective 'allreduce': choose from all_reduce"):
        best("allreduce", 8, 2, LINK)


# Networks


def test_numbering_and_links() -> None:
    two = network(2, 4)
    assert (two.ranks, [two.node_of(r) for r in range(8)]) == (8, [0, 0, 0, 0, 1, 1, 1, 1])
    assert two.link(0, 3) == INSIDE and two.link(3, 4) == BETWEEN
    assert two.message(1e6, 0, 3) == pytest.approx(1e-6 + 1e6 / 100e9)
    assert two.message(1e6, 0, 4) == pytest.approx(10e-6 + 1e6 / 10e9)
    assert [two.layout(m) for m in ([0, 1], [0, 4], [0, 1, 4], range(8))] == [
        (2,), (1, 1), (2, 1), (4, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("collective", ALGORITHMS)
@pytest.mark.parametrize("size", [8, 1e5, 1e8])
def test_a_collective_on_one_node_uses_its_links_and_others_the_slow_ones(
    collective: str, size: float
) -> None:
    two = network(2, 4, call=5e-6)
    assert two.collective(collective, size, range(4)) == best(collective, size, 4, INSIDE, 5e-6)
    assert two.collective(collective, size, [0, 4]) == best(collective, size, 2, BETWEEN, 5e-6)
    uneven = two.collective(collective, size, [0, 1, 4])
    assert uneven == best(collective, size, 3, BETWEEN, 5e-6)


@pytest.mark.parametrize("collective", HIERARCHIES)
def test_hierarchical_is_never_slower_and_is_named(collective: str) -> None:
    two = network(2, 4)
    for size in (8.0, 1e5, 1e8):
        flat, chosen = best(collective, size, 8, BETWEEN), two.collective(collective, size)
        assert chosen.seconds <= flat.seconds
        assert chosen.algorithm.startswith("hierarchical: ") or chosen == flat


def test_a_large_all_reduce_between_nodes_has_three_steps() -> None:
    chosen = network(2, 4).collective("all_reduce", 1e9)
    rings = collectives.hierarchical_all_reduce(1e9, 2, 4, INSIDE, BETWEEN)
    assert chosen.seconds <= rings
    assert chosen.seconds == pytest.approx(rings, rel=1e-3)
    assert chosen.algorithm == (
        "hierarchical: recursive halving inside, recursive doubling between, Bruck inside"
    )


def test_small_all_reduce_crosses_between_nodes_once() -> None:
    """Recursive doubling takes log₂ 4 rounds inside such nodes, and log₂ 2 between them."""
    seconds = network(2, 4).collective("all_reduce", 0).seconds
    assert seconds == pytest.approx(2 * 1e-6 + 1 * 10e-6)


def test_an_invalid_network_is_refused_in_one_line() -> None:
    for wrong, expected in [
        ({"nodes": 0}, "nodes is a whole number, 1 or more, not 0"),
        ({"ranks_per_node": 2.5}, "ranks_per_node is a whole number, 1 or more, not 2.5"),
        ({"nodes": True}, "nodes is a whole number"),
        ({"inside": (1e-6, 1e9)}, "inside is a Link, as in Link.of("),
        ({"between": Link(-1e-6, 0)}, "between.alpha is in seconds, from 0 to an hour, not -1e-06"),
        ({"between": Link(1e-6, math.nan)}, "between.beta is in seconds"),
        ({"call": 5000}, "call is in seconds, from 0 to an hour, not 5000"),
        ({"call": "10e-6"}, "call is in seconds"),
    ]:  # fmt: skip
        right = {"nodes": 2, "ranks_per_node": 4, "inside": INSIDE, "between": BETWEEN, "call": 0.0}
        with pytest.raises(ValueError) as refused:
            Network(**right | wrong)
        assert expected in str(refused.value) and "\n" not in str(refused.value)
    for bandwidth in (0, -1e9, math.nan):
        with pytest.raises(ValueError, match="bytes a second, above 0"):
            Link.of(1e-6, bandwidth)


def test_a_network_survives_json() -> None:
    import json

    described = network(2, 4, call=5e-6)
    assert str(described) == (
        "2 nodes of 4 ranks: 1 µs and 100 GB/s inside, 10 µs and 10 GB/s between, 5 µs a call"
    )
    assert str(network(1, 1)) == "1 node of 1 rank: 1 µs and 100 GB/s inside"
    assert Network.from_dict(json.loads(json.dumps(described.as_dict()))) == described
