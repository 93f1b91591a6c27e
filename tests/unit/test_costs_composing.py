"""The formulas for combined parallelism, compared with the tables of Narayanan et al. 2021."""

import json

import pytest

from parlab import reference_tables
from parlab.costs import composing as costs
from parlab.costs import layouts as planner
from parlab.costs.networks import Link
from parlab.costs.pipeline_parallel import best_micro_batch
from parlab.layouts import Cluster, Layout, Model
from parlab.runtime.paths import ROOT

RATE = 190e12  # of matrix products: fitted to Table 1


def a100s(nodes: int, rate: float = RATE) -> Cluster:
    return Cluster(nodes, 8, 80e9, rate, costs.A100_NVLINK, costs.A100_NETWORK)


def table_1() -> list[tuple[dict, Model, Layout, int]]:
    """Return each row with its model, layout, and stages on a rank."""
    runs = []
    for row in reference_tables.load("megatron_table1").rows:
        hidden, batch = int(row["hidden_size"]), int(row["batch_size"])
        model = Model(int(row["layers"]), hidden, int(row["attention_heads"]), 2048, 51200, batch)
        t, p = int(row["tensor_parallel"]), int(row["pipeline_parallel"])
        b, chunks = costs.TABLE_1_SETTINGS[hidden]
        runs.append((row, model, Layout(int(row["gpus"]) // (t * p), t, p, b), chunks))
    return runs


def test_table_1_parameters_and_aggregates() -> None:
    for row, model, layout, _ in table_1():
        assert costs.parameters(model) / 1e9 == pytest.approx(
            row["parameters_billion"], rel=0.01, abs=0.05
        )
        assert layout.devices == row["gpus"]
        percent = 100 * row["tflops_per_gpu"] * 1e12 / costs.A100_PEAK
        assert percent == pytest.approx(row["percent_of_peak"], abs=1)


def test_the_settings_of_table_1_divide_batches_and_layers() -> None:
    for _, model, layout, chunks in table_1():
        assert model.batch % (layout.dp * layout.micro_batch) == 0
        assert model.layers % (layout.pp * chunks) == 0


def test_the_flop_of_a_step_are_equation_3() -> None:
    for _, model, _, _ in table_1():
        s, h, layers, v = model.sequence, model.hidden, model.layers, model.vocabulary
        printed = 96 * model.batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
        assert costs.step_flop(model) == pytest.approx(printed)


def test_one_rate_of_products_predicts_all_rows_of_table_1() -> None:
    for row, model, layout, chunks in table_1():
        parts = costs.step_parts(model, layout, a100s(layout.devices // 8), chunks=chunks)
        predicted = costs.flop_rate(model, layout, parts) / 1e12
        assert predicted == pytest.approx(row["tflops_per_gpu"], rel=0.06), row


@pytest.mark.parametrize("batch", [32, 128])
def test_tensor_parallelism_is_best_on_all_devices_of_a_node(batch: int) -> None:
    """Figure 13: a model of 161 billion parameters on 64 GPUs is fastest with t = 8 and p = 8."""
    model = Model(32, 20480, 128, 2048, 51200, batch)
    rates = {}
    for t in (2, 4, 8, 16, 32):
        layout = Layout(1, t, 64 // t, 1)
        rates[t] = costs.flop_rate(model, layout, costs.step_parts(model, layout, a100s(8)))
    assert max(rates, key=rates.get) == 8


@pytest.mark.parametrize("batch", [32, 128, 512])
def test_data_parallelism_is_better_than_a_pipeline_or_split_layers(batch: int) -> None:
    """Figures 14 and 15: throughput of 5.9 billion parameters on 64 GPUs falls with p, and with t.

    In the model, it falls with p up to 8 only: later, the bubble (n − d)/B grows little.
    """
    model = Model(32, 3840, 32, 2048, 51200, batch)
    sizes = [k for k in (2, 4, 8, 16, 32) if batch % (64 // k) == 0]

    def rates(layouts: list[Layout]) -> list[float]:
        parts = [costs.step_parts(model, one, a100s(8)) for one in layouts]
        return [costs.flop_rate(model, *one) for one in zip(layouts, parts, strict=True)]

    staged = rates([Layout(64 // k, 1, k, 1) for k in sizes])
    assert staged[0] > staged[1] > staged[2] and staged[0] > 1.03 * max(staged[2:])
    split = rates([Layout(64 // k, k, 1, 1) for k in sizes])
    assert split == sorted(split, reverse=True)


def test_the_best_micro_batch_by_formula_and_by_trying_all() -> None:
    """T(b) = 0.3 + b, as in Figure 7: 30% more throughput for large b than for b = 1."""
    for samples in (128, 512):
        exact = costs.best_micro_batch(0.3, 1.0, samples, 8)
        tried, _ = best_micro_batch(samples, 8, lambda b: 0.3 + b)
        assert tried / 2 < exact < 2 * tried
    assert costs.best_micro_batch(0.3, 1.0, 128, 1) == float("inf")


def test_a_step_without_communication_is_computation_and_bubble() -> None:
    model, far = Model(8, 1024, 16, 512, 1000, 16), costs.A100_NETWORK
    cluster = Cluster(1, 4, 80e9, 1e12, far, far)
    one = costs.step_parts(model, Layout(1, 1, 1, 1), cluster)
    assert one.tensor == one.bubble == one.pipeline == one.data == 0
    assert one.products == pytest.approx(costs.step_flop(model) / 1e12)
    staged = costs.step_parts(model, Layout(1, 1, 4, 1), cluster)
    assert staged.bubble == pytest.approx((staged.products + staged.elementwise) * 3 / 16)
    assert staged.total == pytest.approx(
        staged.products + staged.elementwise + staged.bubble + staged.pipeline
    )


def test_messages_between_stages_and_replicas_by_hand() -> None:
    """Links of 1 MB/s without latency, and two micro-batches in a pipeline of two stages."""
    link = Link.of(0.0, 1e6)
    model = Model(4, 64, 4, 32, 100, 4)
    size = 2 * 2 * 32 * 64  # of an activation of two sequences, in 16 bits
    staged = costs.step_parts(model, Layout(1, 1, 2, 2), Cluster(1, 2, 1e9, 1e9, link, link))
    assert staged.pipeline == pytest.approx(2 * size / 1e6)  # both go there and back together
    assert staged.data == staged.tensor == 0
    # Three waves of micro-batches, each to the last stage and back.
    many = costs.step_parts(
        Model(4, 64, 4, 32, 100, 10), Layout(1, 1, 2, 2), Cluster(1, 2, 1e9, 1e9, link, link)
    )
    assert many.pipeline == pytest.approx(3 * 2 * size / 1e6)
    shared = costs.step_parts(model, Layout(1, 2, 1, 2), Cluster(1, 2, 1e9, 1e9, link, link))
    assert shared.tensor == pytest.approx(2 * 6 * 4 * size / 1e6)  # 6 all-reduces in 4 layers
    replicas = costs.step_parts(model, Layout(2, 1, 1, 2), Cluster(1, 2, 1e9, 1e9, link, link))
    parameters = 4 * 12 * 64**2 + 100 * 64
    assert replicas.data == pytest.approx(2 * 2 * parameters / 2 / 1e6)


def test_elementwise_operations_read_and_write_what_is_kept() -> None:
    model, link = Model(2, 64, 4, 32, 100, 4), costs.A100_NETWORK
    cluster = Cluster(1, 1, 1e9, 1e9, link, link)
    parts = costs.step_parts(model, Layout(1, 1, 1, 1), cluster, memory_bandwidth=1e6)
    kept = 32 * 64 * (34 + 5 * 4 * 32 / 64)
    assert parts.elementwise == pytest.approx(4 * 2 * 6 * kept / 1e6)


def test_the_messages_of_zero_3_do_not_shrink_with_more_devices() -> None:
    """Table 2: a step of 174.6 billion parameters takes equally long on 768 and 1,536 GPUs."""
    model = Model(96, 12288, 96, 2048, 51200, 1536)
    few, many = (costs.zero3_seconds(model, a100s(n), 1536 // (8 * n)) for n in (96, 192))
    assert many[0] == pytest.approx(few[0] / 2)
    assert 1 < many[1] / few[1] < 1.1
    rows = [r for r in reference_tables.load("megatron_zero3_table2").rows
            if r["system"] == "ZeRO-3" and r["parameters_billion"] == 174.6]  # fmt: skip
    measured = [costs.step_flop(model) / r["gpus"] / r["tflops_per_gpu"] / 1e12 for r in rows]
    assert measured[2] == pytest.approx(measured[1], rel=0.01)


def test_zero_3_by_hand() -> None:
    """On two devices without latency: each sends half of two gathers and one reduce-scatter."""
    link = Link.of(0.0, 1e6)
    model, cluster = Model(4, 64, 4, 32, 100, 8), Cluster(1, 2, 1e9, 1e9, link, link)
    compute, messages = costs.zero3_seconds(model, cluster, 2)
    assert compute == pytest.approx(3 * 4 * model.layer_flop(8) / 2 / 1e9)
    layer = 12 * 64**2
    assert messages == pytest.approx(2 * 4 * 3 * (2 * layer / 2) / 1e6)
    states = 16 * (4 * layer + 100 * 64) / 2
    assert costs.zero3_bytes(model, 2, 2) == states + 4 * layer + 4 * 34 * 2 * 32 * 64


def test_the_recorded_layouts_are_in_the_planners_order() -> None:
    """At least ten layouts on the emulated cluster, Spearman 0.9, and a pick within 10%."""
    record = json.loads((ROOT / "book" / "measurements" / "layouts.json").read_text())
    links = {name: Link(**record["cluster"].pop(name)) for name in ("inside", "between")}
    cluster, model = Cluster(**record["cluster"], **links), Model(**record["model"])
    measured = {
        Layout(s["dp"], s["tp"], s["pp"], s["micro_batch"]): s["seconds"] for s in record["steps"]
    }
    predicted = {layout: planner.step_seconds(model, layout, cluster) for layout in measured}
    orders = [sorted(measured, key=seconds.get) for seconds in (measured, predicted)]
    n = len(measured)
    squares = sum((orders[0].index(layout) - orders[1].index(layout)) ** 2 for layout in measured)
    assert n >= 10
    assert 1 - 6 * squares / (n * (n**2 - 1)) >= 0.9
    assert measured[planner.plan(model, cluster)[0]] <= 1.1 * min(measured.values())
