"""The formulas of data parallelism, compared with published numbers and with each other."""

import pytest

from parlab.costs import data_parallel as costs
from parlab.costs.collectives import Link, halving_doubling_all_reduce

GPU = costs.Machine(flop_per_second=100e12, link=Link(alpha=5e-6, beta=1 / 25e9))


def test_traffic_is_the_baseline_of_zero_figure_1() -> None:
    """ZeRO (arXiv:1910.02054): 2Ψ elements per step, times (N−1)/N; Ψ = 7.5 B, N = 64."""
    sent = costs.bytes_sent(7_500_000_000, 64, element_bytes=2)
    assert sent == pytest.approx(2 * 7.5e9 * 63 / 64 * 2)


def test_one_rank_sends_nothing_and_is_efficient() -> None:
    work = costs.Work(10**9)
    assert costs.bytes_sent(10**9, 1) == 0
    assert costs.weak_efficiency(work, GPU, 8, 1) == costs.strong_efficiency(work, GPU, 8, 1) == 1


def test_a_step_without_overlap_is_the_sum_and_with_it_at_least_the_longer() -> None:
    assert costs.step_seconds(3.0, 1.0, overlap=0) == 4.0
    assert costs.step_seconds(3.0, 1.0) == 3.0
    # 2 s of the backward pass overlap with 5 s of communication.
    assert costs.step_seconds(3.0, 5.0) == 6.0
    with pytest.raises(ValueError, match="from 0 to 1"):
        costs.step_seconds(1.0, 1.0, overlap=2)


def test_weak_efficiency_falls_with_ranks_and_rises_with_the_batch() -> None:
    work = costs.Work(10**9, element_bytes=2)
    over_ranks = [costs.weak_efficiency(work, GPU, 512, 2**i, overlap=0) for i in range(11)]
    over_batch = [costs.weak_efficiency(work, GPU, 2**i, 64, overlap=0) for i in range(11)]
    assert over_ranks == sorted(over_ranks, reverse=True)
    assert over_batch == sorted(over_batch)


def test_strong_scaling_is_weak_scaling_with_a_shrinking_share() -> None:
    work = costs.Work(10**8)
    for n in (2, 16, 1024):
        assert costs.strong_efficiency(work, GPU, 4096, n) == pytest.approx(
            costs.weak_efficiency(work, GPU, 4096 // n, n)
        )


def test_communication_is_hidden_from_samples_to_hide() -> None:
    work = costs.Work(10**9)
    enough = costs.samples_to_hide(work, GPU, 64)
    assert costs.weak_efficiency(work, GPU, int(enough) + 1, 64) == 1
    assert costs.weak_efficiency(work, GPU, int(enough) - 1, 64) < 1


def test_an_algorithm_with_fewer_rounds_helps_if_latency_dominates() -> None:
    tree = costs.Machine(GPU.flop_per_second, GPU.link, halving_doubling_all_reduce)
    small = costs.Work(10**6)
    assert costs.weak_efficiency(small, tree, 512, 1024) > costs.weak_efficiency(
        small, GPU, 512, 1024
    )


def test_buckets_are_sent_one_after_the_other_when_they_are_ready() -> None:
    timeline = costs.bucket_timeline([1, 1, 1], [2, 1, 1])
    assert [(t.ready, t.start, t.end) for t in timeline] == [(1, 1, 3), (2, 3, 4), (3, 4, 5)]
    # A single bucket cannot overlap, because it is ready when the backward pass ends.
    (alone,) = costs.bucket_timeline([3], [4])
    assert (alone.ready, alone.start, alone.end) == (3, 3, 7)
    with pytest.raises(ValueError, match="shorter"):
        costs.bucket_timeline([1, 1], [1])


def test_batch_size_trade_off_is_mccandlish_hyperbola() -> None:
    """(S/S_min − 1)(E/E_min − 1) = 1 at every batch size; twice both minima at B_crit."""
    critical, fewest = 1000.0, 50.0
    for batch in (10.0, 1000.0, 1e6):
        steps = costs.steps_to_loss(batch, critical, fewest)
        examples = costs.examples_to_loss(batch, critical, fewest)
        assert (steps / fewest - 1) * (examples / (critical * fewest) - 1) == pytest.approx(1)
    assert costs.steps_to_loss(critical, critical, fewest) == 2 * fewest
