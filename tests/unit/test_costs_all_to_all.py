"""Experts and context parallelism, compared with other formulas, counts, or numbers by hand."""

import pytest

from parlab.costs import all_to_all as costs
from parlab.costs.collectives import Link


def test_the_two_steps_of_a_hierarchical_exchange() -> None:
    """On 3 × 2 ranks: one message of half inside, then two messages of a third between nodes."""
    inside, between = Link(1.0, 10.0), Link(100.0, 1000.0)
    seconds = costs.hierarchical_all_to_all(6.0, 3, 2, inside, between)
    assert seconds == pytest.approx((1 + 3 * 10) + 2 * (100 + 2 * 1000))


def test_capacity_is_rounded_up_but_not_by_rounding_errors() -> None:
    assert costs.capacity(1024, 16, 2, 1.25) == 160
    assert costs.capacity(6, 4, 1, 1.0) == 2
    assert costs.capacity(10, 1, 1, 1.2) == 12
    assert costs.capacity(100, 1, 1, 1.1) == 110  # 1.1 · 100 is 110.00000000000001
    with pytest.raises(ValueError, match="capacity factor"):
        costs.capacity(4, 2, 1, 0.0)


def test_ulysses_sends_four_times_the_tokens_in_each_pass() -> None:
    cost = costs.ulysses_attention(100.0, 4)
    assert (cost.rounds, cost.bytes) == (12, pytest.approx(2 * 4 * 75))
    assert costs.ulysses_attention(100.0, 4, 0.5).bytes == pytest.approx(2 * 3 * 75)
    assert costs.ulysses_attention(100.0, 1).bytes == 0


def test_heads_of_keys_are_copied_if_there_are_more_ranks() -> None:
    assert costs.key_value_share(64, 8, 4) == 1 / 8
    assert costs.key_value_share(64, 8, 32) == 1 / 2
    with pytest.raises(ValueError, match="64 heads cannot be divided among 48 ranks"):
        costs.key_value_share(64, 8, 48)


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("message", [0.25, 1.0, 4.0])
def test_the_overlapped_loop_reaches_the_bound(ranks: int, message: float) -> None:
    computing, sending = costs.ring_schedule(ranks, 1.0, message)
    assert len(computing) == ranks and len(sending) == ranks - 1
    assert sum(computing[-1]) == pytest.approx(costs.ring_seconds(ranks, 1.0, message))


def test_without_overlap_both_add_up() -> None:
    computing, sending = costs.ring_schedule(4, 2.0, 3.0, overlap=False)
    assert sum(computing[-1]) == 4 * 2 + 3 * 3
    assert sending[0] == (2.0, 3.0)


def test_pairs_of_a_causal_mask_by_hand() -> None:
    """Of 4 tokens on 2 ranks, the first rank sees 1 + 2 pairs, and the second one 3 + 4."""
    assert costs.visible_pairs([[0, 1], [2, 3]]) == [[3, 0], [3, 4]]
    assert costs.visible_pairs([[0, 3], [1, 2]]) == [[3, 2], [3, 2]]
    # In step 1, rank 0 has the key of rank 2, which it does not see.
    assert costs.visible_pairs([[0], [1], [2]]) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
