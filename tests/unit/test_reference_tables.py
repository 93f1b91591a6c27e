"""The published tables agree with the formulas of their papers."""

import pytest

from parlab import reference_tables


def test_zero_table_1_follows_from_bytes_per_parameter() -> None:
    # Mixed precision with Adam: 2 bytes of parameters, 2 of gradients, 12 of optimizer states.
    for row in reference_tables.load("zero_table1").rows:
        billions, n = row["parameters_billion"], row["data_parallel_degree"]
        expected = {
            "stage1_gb": (4 + 12 / n) * billions,
            "stage2_gb": (2 + 14 / n) * billions,
            "stage3_gb": 16 / n * billions,
        }
        for column, gb in expected.items():
            # The paper prints three digits, and truncates numbers from 100.
            assert row[column] == pytest.approx(gb, rel=0.005, abs=0.05), (row, column)


def test_megatron_table_1_aggregate_is_the_sum_over_gpus() -> None:
    for row in reference_tables.load("megatron_table1").rows:
        petaflops = row["gpus"] * row["tflops_per_gpu"] / 1000
        assert row["aggregate_pflops"] == pytest.approx(petaflops, rel=0.005, abs=0.05), row


def test_megatron_table_1_parameters_follow_from_the_shape() -> None:
    vocabulary, sequence = 51200, 2048
    for row in reference_tables.load("megatron_table1").rows:
        layers, hidden = row["layers"], row["hidden_size"]
        per_layer = 12 * layers * hidden**2
        correction = 1 + 13 / (12 * hidden) + (vocabulary + sequence) / (12 * layers * hidden)
        billions = per_layer * correction / 1e9
        assert row["parameters_billion"] == pytest.approx(billions, rel=0.01, abs=0.05), row


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="zero_table1"):
        reference_tables.load("zero_table2")
