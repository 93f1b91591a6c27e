"""The formulas of ZeRO, compared with the paper's tables and with numbers by hand."""

import pytest

from parlab import reference_tables
from parlab.costs import zero
from parlab.costs.collectives import Link, ring_bytes


def test_table_1_of_the_paper() -> None:
    for row in reference_tables.load("zero_table1").rows:
        for stage in (1, 2, 3):
            gb = zero.total(row["parameters_billion"], int(row["data_parallel_degree"]), stage)
            # The paper prints three digits, and truncates numbers from 100.
            assert row[f"stage{stage}_gb"] == pytest.approx(gb, rel=0.005, abs=0.05), (row, stage)


def test_the_largest_models_of_table_2() -> None:
    largest = [zero.largest_model(32e9, 64, stage) / 1e9 for stage in zero.STAGES]
    assert largest == pytest.approx([2.0, 7.6, 14.4, 128], rel=0.01)


@pytest.mark.parametrize("recipe", [zero.MIXED_ADAM, zero.FLOAT32_ADAM, zero.MIXED_MOMENTUM])
def test_each_stage_shards_one_kind_more(recipe: zero.Recipe) -> None:
    kinds = ("optimizer_states", "gradients", "parameters")
    whole = zero.model_states(1000, 8, 0, recipe)
    assert sum(whole.values()) == 1000 * recipe.total
    for stage in zero.STAGES:
        held = zero.model_states(1000, 8, stage, recipe)
        for kind in kinds:
            assert held[kind] == whole[kind] / (8 if kind in kinds[:stage] else 1)


def test_one_rank_holds_everything_and_sends_nothing() -> None:
    for stage in zero.STAGES:
        assert zero.total(1000, 1, stage) == 16_000
        assert zero.bytes_sent(1000, 1, stage, 2) == 0


def test_traffic_in_units_of_the_parameters() -> None:
    once = 3 / 4 * 1000 * 2
    assert [zero.bytes_sent(1000, 4, stage, 2) / once for stage in zero.STAGES] == [2, 2, 2, 3]


def test_offload() -> None:
    assert zero.offload_bytes(800, 4) == (400, 400)


def test_prefetch_overlaps_gathers_with_layers() -> None:
    assert zero.prefetch_seconds(6, 4, 6, prefetch=False) == 60
    assert zero.prefetch_seconds(6, 4, 6, prefetch=True) == 40
    assert zero.prefetch_seconds(6, 10, 6, prefetch=True) == 66
    assert zero.prefetch_seconds(6, 4, 6, prefetch=True, scatter=1) == 46


def test_tokens_to_hide_makes_gather_and_computation_equal() -> None:
    link, psi, flops = Link(0, 1 / 50e9), 7.5e9, 400e12
    tokens = zero.tokens_to_hide(flops, link.beta)
    assert 2 * psi * tokens / flops == pytest.approx(2 * psi * link.beta)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no stage 4"):
        zero.total(1, 1, 4)
    with pytest.raises(ValueError, match="at least one rank"):
        zero.bytes_sent(1, 0, 3, 2)
    with pytest.raises(ValueError, match="no bus factor for 'scan'"):
        ring_bytes("scan", 1, 2)
