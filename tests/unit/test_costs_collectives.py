"""The formulas, compared with schedules simulated round by round, and with published numbers."""

import math

import pytest

from parlab.costs import collectives
from parlab.costs.collectives import Cost, Link

WORLD_SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16, 64]
SIZE = 1e6
LINK = Link(alpha=2e-6, beta=1e-10)


def binomial_rounds(n: int) -> int:
    """Return the rounds until all ranks have the data, if all that have it send it on."""
    have, rounds = {0}, 0
    while len(have) < n:
        have |= {rank + len(have) for rank in have if rank + len(have) < n}
        rounds += 1
    return rounds


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_binomial_broadcast_doubles_each_round(n: int) -> None:
    cost = collectives.binomial_broadcast(SIZE, n)
    assert cost.rounds == binomial_rounds(n) == math.ceil(math.log2(n))
    assert cost.bytes == cost.rounds * SIZE


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_ring_all_reduce_as_published(n: int) -> None:
    """Each rank sends 2(N−1) messages, 2(N−1)/N · S bytes, in 2(N−1)α + 2(N−1)/N · S·β seconds."""
    cost = collectives.ring_all_reduce(SIZE, n)
    assert cost.rounds == 2 * (n - 1)
    assert cost.bytes == pytest.approx(2 * (n - 1) / n * SIZE)
    assert cost.reduced == pytest.approx((n - 1) / n * SIZE)
    expected = 2 * (n - 1) * LINK.alpha + 2 * (n - 1) / n * SIZE * LINK.beta
    assert cost.seconds(LINK) == pytest.approx(expected)


@pytest.mark.parametrize("n", [2, 4, 8, 64, 1024])
def test_halving_doubling_sends_as_many_bytes_as_the_ring_in_fewer_rounds(n: int) -> None:
    ring = collectives.ring_all_reduce(SIZE, n)
    halving = collectives.halving_doubling_all_reduce(SIZE, n)
    # Halve n times and add up: size/2 + size/4 + … = (n−1)/n · size.
    exchanged = sum(SIZE / 2**k for k in range(1, int(math.log2(n)) + 1))
    assert halving.bytes == pytest.approx(2 * exchanged) == pytest.approx(ring.bytes)
    assert halving.rounds == 2 * math.log2(n)


def test_a_world_of_one_rank_costs_nothing() -> None:
    for name in ("binomial_broadcast", "ring_all_reduce", "recursive_doubling_all_reduce"):
        assert getattr(collectives, name)(SIZE, 1).seconds(LINK) == 0


def test_extra_ranks_cost_two_more_rounds() -> None:
    eight = collectives.recursive_doubling_all_reduce(SIZE, 8)
    nine = collectives.recursive_doubling_all_reduce(SIZE, 9)
    assert (nine.rounds, nine.bytes) == (eight.rounds + 2, eight.bytes + 2 * SIZE)


@pytest.mark.parametrize("n", [4, 16, 100])
def test_tree_wins_for_small_data_and_ring_for_large(n: int) -> None:
    def tree_over_ring(size: float) -> float:
        tree = collectives.tree_all_reduce(size, n).seconds(LINK)
        return tree / collectives.ring_all_reduce(size, n).seconds(LINK)

    assert tree_over_ring(8) < 1 < tree_over_ring(1e9)


def test_large_data_is_broadcast_faster_in_chunks() -> None:
    whole = collectives.binomial_broadcast(1e9, 16).seconds(LINK)
    chunks = collectives.scatter_all_gather_broadcast(1e9, 16).seconds(LINK)
    assert chunks < whole / 2


def test_hierarchy_uses_every_network_card() -> None:
    """With m ranks per node, the slow links carry 1/m of the flat ring's bytes."""
    inside, between = Link(0, 0), Link(0, 1e-9)
    flat = collectives.flat_ring_all_reduce(SIZE, 4, 8, inside, between)
    steps = collectives.hierarchical_all_reduce(SIZE, 4, 8, inside, between)
    assert steps == pytest.approx(SIZE / 8 * 2 * (3 / 4) * 1e-9)
    assert flat / steps == pytest.approx(8 * (31 / 32) / (3 / 4))


def test_hierarchy_on_one_node_is_the_ring() -> None:
    arguments = SIZE, 1, 8, LINK, Link(1, 1)
    ring = collectives.ring_all_reduce(SIZE, 8).seconds(LINK)
    assert collectives.hierarchical_all_reduce(*arguments) == pytest.approx(ring)
    assert collectives.flat_ring_all_reduce(*arguments) == pytest.approx(ring)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("n", [2, 3, 64])
def test_bus_bandwidth_of_a_ring_is_the_links(collective: str, n: int) -> None:
    cost: Cost = getattr(collectives, f"ring_{collective}")(SIZE, n)
    seconds = cost.seconds(Link(0, LINK.beta))
    bandwidth = collectives.bus_bandwidth(collective, SIZE, seconds, n)
    assert bandwidth == pytest.approx(LINK.bandwidth)


def test_latency_is_half_of_the_time_at_half_size() -> None:
    seconds = collectives.message(LINK.half_size).seconds(LINK)
    assert seconds == pytest.approx(2 * LINK.alpha)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        collectives.ring_all_reduce(SIZE, 0)
    with pytest.raises(ValueError, match="choose from all_reduce"):
        collectives.bus_bandwidth("allreduce", SIZE, 1.0, 4)
