"""All kinds of parallelism in one table, compared with other formulas or numbers by hand."""

import pytest

from parlab.costs import data_parallel, splits, zero
from parlab.costs.all_to_all import expert_layer, ring_attention
from parlab.costs.collectives import Link
from parlab.costs.splits import Transformer

MODEL = Transformer(layers=3, hidden=8, sequence=16)
PARAMETERS = 12 * 3 * 64


def test_parameters_are_those_of_attention_and_mlp() -> None:
    assert MODEL.parameters == PARAMETERS


def test_data_parallelism_and_zero_send_what_their_chapters_say() -> None:
    data, stage_3 = (splits.step_cost(name, MODEL, 4).bytes for name in ("data", "zero 3"))
    assert data == pytest.approx(data_parallel.bytes_sent(PARAMETERS, 4, 2))
    assert stage_3 == pytest.approx(zero.bytes_sent(PARAMETERS, 4, 3, 2))


def test_tensor_parallelism_sends_four_all_reduces_of_all_tokens() -> None:
    activation = 2 * 4 * 16 * 8
    tensor = splits.step_cost("tensor", MODEL, 4)
    assert tensor.bytes == pytest.approx(3 * 4 * 2 * 3 / 4 * activation)
    assert tensor.rounds == 3 * 4 * 6
    sequence = splits.step_cost("sequence", MODEL, 4)
    assert sequence.bytes / tensor.bytes == pytest.approx(10 / 8)


def test_keys_and_values_travel_around_the_ring() -> None:
    """On 4 ranks: 3 hops forward, 3 hops backward, 4 hops of their gradients."""
    cost = ring_attention(100.0, 4)
    assert (cost.rounds, cost.bytes) == (10, 1000.0)
    keys_and_values = 2 * 2 * 16 * 8  # one sequence on each rank: a quarter of four sequences
    assert splits.step_cost("context", MODEL, 4).bytes == 3 * 10 * keys_and_values


def test_experts_get_each_token_and_send_it_back() -> None:
    """Four times, 3/4 of 2 · 100 bytes of tokens are sent to other ranks."""
    assert expert_layer(100.0, 4, 2).bytes == 4 * 150
    assert expert_layer(100.0, 4, 2).rounds == 12


def test_a_stage_in_the_middle_sends_each_sequence_on_and_back() -> None:
    pipeline = splits.step_cost("pipeline", MODEL, 4)
    assert (pipeline.rounds, pipeline.bytes) == (8, 8 * 2 * 16 * 8)


@pytest.mark.parametrize("name", splits.NAMES)
def test_one_rank_sends_nothing(name: str) -> None:
    assert splits.step_cost(name, MODEL, 1).bytes == 0


@pytest.mark.parametrize("name", splits.NAMES)
def test_the_share_divides_seconds_by_seconds(name: str) -> None:
    link = Link.of(alpha=0.0, bandwidth=1.0)
    seconds = splits.step_cost(name, MODEL, 4).bytes
    flop = 3 * 72 * 16 * 8 * 8 * (1 + 16 / 48)
    if name == "expert":  # a second MLP for each token, forward and backward: 8h² parameters
        flop += 3 * 6 * 16 * 8 * 8**2
    share = splits.share_of_compute(name, MODEL, 4, link, flop_per_second=1.0)
    assert share == pytest.approx(seconds / flop)


def test_unknown_kinds_and_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="use one of data"):
        splits.step_cost("model", MODEL, 4)
    for cost in (ring_attention, expert_layer):
        with pytest.raises(ValueError, match="at least one rank"):
            cost(1.0, 0)
