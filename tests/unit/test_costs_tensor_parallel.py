"""The formulas of tensor parallelism, compared with the papers and with numbers by hand."""

import pytest

from parlab.costs import tensor_parallel as costs
from parlab.costs.collectives import Link
from parlab.costs.tensor_parallel import Layer

GPT3, MT_NLG = Layer(1, 2048, 12288, 96), Layer(1, 2048, 20480, 128)


def test_attention_is_80_and_64_bytes_a_number_and_selective_saves_70_and_65_percent() -> None:
    """Korthikanti et al. 2022, section 5."""
    for layer, share, saved in [(GPT3, 80, 0.70), (MT_NLG, 64, 0.65)]:
        assert costs.attention_share(layer) == share
        whole = costs.activation_bytes(layer, 8, sequence_parallel=True)
        selective = costs.activation_bytes(layer, 8, sequence_parallel=True, recompute="selective")
        assert 1 - selective / whole == pytest.approx(saved, abs=0.005)


def test_both_techniques_leave_less_than_a_fifth_for_the_four_models_of_the_paper() -> None:
    """Section 6.1: less than 20 % of tensor parallelism's activations; each alone about half."""
    for layer in (Layer(4, 2048, 6144, 64), GPT3, MT_NLG, Layer(1, 2048, 25600, 160)):
        plain = costs.activation_bytes(layer, 8)
        both = costs.activation_bytes(layer, 8, sequence_parallel=True, recompute="selective")
        assert both < 0.21 * plain
        assert 0.4 < costs.activation_bytes(layer, 8, sequence_parallel=True) / plain < 0.7


@pytest.mark.parametrize(("shared", "factor"), [(False, 10 + 24 / 4), (True, 34 / 4)])
def test_the_table_of_formulas(shared: bool, factor: float) -> None:
    layer = Layer(2, 3, 8, 4)
    sbh = 48
    scores = 5 * 4 * 3 / 8
    assert costs.activation_bytes(layer) == sbh * (34 + scores)
    assert costs.activation_bytes(layer, 4, sequence_parallel=shared) == pytest.approx(
        sbh * (factor + scores / 4)
    )
    assert costs.activation_bytes(
        layer, 4, sequence_parallel=shared, recompute="selective"
    ) == pytest.approx(sbh * factor)
    assert costs.activation_bytes(layer, 4, recompute="full") == 2 * sbh


def test_the_labs_block_follows_the_paper_without_masks_and_scores() -> None:
    layer = Layer(2, 3, 8, 4)
    block = costs.block_in_numbers(2, 3, 8, 4, element_bytes=2)
    assert block["serial"] == 32 * layer.numbers
    whole = costs.activation_bytes(layer, 4, recompute="selective")
    assert block["tensor_parallel"] == whole - 2 * layer.numbers
    whole = costs.activation_bytes(layer, 4, sequence_parallel=True, recompute="selective")
    assert block["sequence_parallel"] == whole - 2 * layer.numbers / 4


def test_a_layer_sends_four_all_reduces_and_a_sequence_no_more() -> None:
    cost = costs.layer_cost(1000, 4)
    assert (cost.rounds, cost.bytes) == (4 * 6, 4 * 2 * 750)
    assert costs.sequence_layer_cost(1000, 4, gather_again=False) == cost
    assert costs.sequence_layer_cost(1000, 4).bytes == cost.bytes + 2 * 750
    assert costs.layer_in_numbers(1, 5, 10, 1, 4)["sent"] == 0


def test_a_layers_flop_are_those_of_its_products() -> None:
    b, s, h = 3, 5, 7
    forward = 24 * b * s * h * h + 4 * b * s * s * h
    assert costs.layer_flop(Layer(b, s, h)) == pytest.approx(3 * forward)
    assert costs.attention_recompute_flop(Layer(b, s, h)) == 4 * b * s * s * h


@pytest.mark.parametrize("chunks", [1, 4])
def test_chunks_overlap_computing_and_sending(chunks: int) -> None:
    free, compute, size = Link(0, 1e-9), 8.0, 2e9  # an all-reduce over two ranks takes 2 s
    computing, reducing = costs.chunked(compute, size, 2, free, chunks)
    assert sum(duration for _, duration in computing) == pytest.approx(compute)
    assert all(a + b <= c for (a, b), (c, _) in zip(computing, reducing, strict=True))
    assert sum(reducing[-1]) == pytest.approx(8 + 2 / chunks)
    assert sum(costs.chunked(2.0, 8e9, 2, free, chunks)[1][-1]) == pytest.approx(8 + 2 / chunks)


def test_every_chunk_pays_the_latency() -> None:
    _, reducing = costs.chunked(0.0, 1e9, 2, Link(1, 1e-9), 5)
    assert sum(reducing[-1]) == pytest.approx(5 * 2 + 1)


def test_the_hidden_size_that_pays_makes_both_times_equal() -> None:
    link, flops, ranks = Link(0, 1 / 50e9), 400e12, 8
    hidden = costs.hidden_to_pay(ranks, link.beta, flops)
    layer = Layer(1, 1, round(hidden))  # one token: attention's own share is nothing
    compute, communication = costs.layer_seconds(layer, ranks, link, flops)
    assert communication == pytest.approx(compute, rel=1e-3)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no recomputation 'some'"):
        costs.activation_bytes(GPT3, recompute="some")
    with pytest.raises(ValueError, match="at least one rank"):
        costs.layer_cost(1, 0)
