"""The formulas of pipeline parallelism, compared with the papers and with numbers by hand."""

import json

import pytest

from parlab import reference_tables
from parlab.costs import pipeline_parallel as costs
from parlab.costs.tensor_parallel import Layer
from parlab.runtime.paths import ROOT

# Huang et al. 2019, Table 2: a Transformer of 48 layers, 32 micro-batches, by partitions.
GPIPE_32 = {2: 1.8, 4: 3.4, 8: 6.3}


def test_the_bubble_in_its_two_forms() -> None:
    """Narayanan et al., figure 4 (p = 4, m = 8, v = 1 and 2), and GPipe's rule of m = 4p."""
    assert costs.bubble(4, 8) == 3 / 8
    assert costs.bubble(4, 8, 2) == 3 / 16
    assert costs.idle_share(4, 8) == pytest.approx(3 / 11)
    for ranks in (2, 4, 8, 64):
        assert costs.idle_share(ranks, 4 * ranks) < 0.2
        assert costs.micro_batches_for(ranks, 0.25) <= 4 * ranks


def test_gpipes_throughput_follows_the_formula_up_to_overheads() -> None:
    """This compares many micro-batches. With few, the paper uses other batch sizes."""
    for ranks, printed in GPIPE_32.items():
        gain = costs.gain_over_naive(ranks, 32)  # M = 1 in the paper: one device at a time
        assert printed <= gain < 1.1 * printed


def test_the_paper_of_interleaved_stages_and_its_activations() -> None:
    """Korthikanti et al., 4.2.3: the first stage keeps L(1 + (p − 1)/(pv)) layers' worth."""
    for ranks, chunks in [(8, 3), (35, 3), (64, 2), (4, 2)]:
        layers = ranks * chunks * 5
        held = costs.live_interleaved(ranks, 0, 10**6, chunks) * layers / ranks
        assert held == pytest.approx(layers * (1 + (ranks - 1) / (ranks * chunks)))


def test_megatrons_configurations_have_small_bubbles() -> None:
    """The bubbles (p − 1)/m of Table 1, with one sample in each micro-batch."""
    bubbles = {}
    for row in reference_tables.load("megatron_table1").rows:
        ranks = int(row["pipeline_parallel"])
        replicas = row["gpus"] / (row["tensor_parallel"] * ranks)
        bubbles[ranks] = costs.bubble(ranks, int(row["batch_size"] / replicas))
    assert bubbles[1] == 0
    assert bubbles[64] == pytest.approx(63 / 512)
    assert max(bubbles.values()) < 0.25


def test_a_step_is_the_ideal_time_and_the_bubble() -> None:
    assert costs.step_seconds(4, 8, 1.0, 2.0) == 11 * 3
    assert costs.step_seconds(4, 8, 1.0, 2.0, 2) == pytest.approx((8 + 1.5) * 3)
    naive = costs.step_seconds(4, 1, 8.0, 16.0)  # all samples at once, which takes eight times
    assert costs.gain_over_naive(4, 8) == pytest.approx(naive / costs.step_seconds(4, 8, 1.0, 2.0))


def test_the_fewest_micro_batches() -> None:
    assert costs.micro_batches_for(8, 0.1) == 70
    assert costs.bubble(8, 69) > 0.1 >= costs.bubble(8, 70)
    assert costs.micro_batches_for(8, 0.1, 4) == 24  # the next multiple of 8 after 18
    assert costs.micro_batches_for(1, 0.1) == 1


def test_the_best_micro_batch_is_neither_the_smallest_nor_the_largest() -> None:
    """T(b) = 1 + b: (8/b + 3)(1 + b) is 22, 21, 25 and 36."""
    assert costs.best_micro_batch(8, 4, lambda b: 1.0 + b) == (2, 21.0)
    assert costs.best_micro_batch(8, 4, lambda b: float(b))[0] == 1
    assert costs.best_micro_batch(6, 1, lambda b: 1.0 + b) == (6, 7.0)


def test_activations_held() -> None:
    assert costs.live_gpipe(8) == 8
    assert [costs.live_1f1b(4, rank, 8) for rank in range(4)] == [4, 3, 2, 1]
    assert [costs.live_1f1b(4, rank, 2) for rank in range(4)] == [2, 2, 2, 1]
    assert [costs.live_interleaved(4, rank, 8, 2) for rank in range(4)] == [5.5, 4.5, 3.5, 2.5]
    assert costs.live_interleaved(4, 0, 4, 2) == 4  # all there are
    assert costs.live_interleaved(4, 1, 8, 1) == 3


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (2, 1), (4, 1), (4, 3), (2, 2)])
def test_the_ranks_messages_add_up_to_those_of_all_borders(ranks: int, chunks: int) -> None:
    each = [costs.sent_by(rank, ranks, 6, 100.0, chunks) for rank in range(ranks)]
    assert sum(cost.rounds for cost in each) == costs.step_messages(ranks, 6, chunks)
    assert sum(cost.bytes for cost in each) == 100 * costs.step_messages(ranks, 6, chunks)
    if ranks > 1:
        assert costs.step_messages(ranks, 6, chunks) == 2 * 6 * (ranks * chunks - 1)


def test_a_message_is_an_activation_or_a_part_of_one() -> None:
    assert costs.message_bytes(Layer(1, 2048, 12288)) == 2 * 2048 * 12288
    assert costs.message_bytes(Layer(1, 2048, 12288), 2, 8) == 2048 * 12288 / 4


def test_zero_bubble_follows_the_papers_table() -> None:
    """Qi et al., Table 2, and the text above it: a third, and none, if all three are equal."""
    rows = costs.zero_bubble(4, 1.0, 1.0, 1.0)
    assert {name: row.bubble for name, row in rows.items()} == {"1F1B": 9, "ZB-H1": 3, "ZB-H2": 0}
    assert {name: row.held for name, row in rows.items()} == {"1F1B": 4, "ZB-H1": 4, "ZB-H2": 7}
    rows = costs.zero_bubble(3, 2.0, 5.0, 1.0)
    assert [row.bubble for row in rows.values()] == [2 * 8, 2 * 6, 2 * 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "at least one rank"),
        ((4, 0), "at least one rank"),
        ((4, 4, 0), "at least one rank"),
        ((4, 6, 2), "multiples of the 4 ranks, not 6"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        costs.bubble(*arguments)


def test_no_bubble_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="always has a bubble"):
        costs.micro_batches_for(4, 0)


def test_recorded_bubbles_follow_the_formula() -> None:
    """All measured bubbles, even small ones, are at most 15 % larger than the formula's."""
    recorded = json.loads((ROOT / "book" / "measurements" / "bubbles.json").read_text())
    ideal = recorded["forward"] + recorded["backward"]
    off = {}
    for row in recorded["bubbles"]:
        ranks, micro_batches = row["ranks"], row["micro_batches"]
        got = row["seconds"] / (micro_batches * ideal) - 1
        right = costs.bubble(ranks, micro_batches, row["chunks"])
        off[row["schedule"], ranks, micro_batches] = got / right - 1
    assert len(off) == 27
    assert all(0 <= far <= 0.15 for far in off.values()), off
