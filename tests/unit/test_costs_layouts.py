"""The planner's formulas, compared with the paper, a simulation, and numbers by hand."""

from dataclasses import replace

import pytest

from parlab import reference_tables
from parlab.costs import layouts as costs
from parlab.costs.collectives import Link
from parlab.layouts import Cluster, Layout, Model
from parlab.pipeline.actions import Action, backward, forward
from parlab.pipeline.simulate import simulate

MODEL = Model(layers=4, hidden=8, heads=4, sequence=10, vocabulary=100, batch=24)
CLUSTER = Cluster(2, 4, 1e9, 1e6, Link(1e-3, 1e-6), Link(2e-3, 3e-6), call=5e-3)


def test_parameters_are_those_of_the_paper() -> None:
    """Narayanan et al. 2021, Table 1, with a vocabulary of 51,200."""
    for row in reference_tables.load("megatron_table1").rows:
        sizes = (int(row[name]) for name in ("layers", "hidden_size", "attention_heads"))
        model = Model(*sizes, sequence=2048, vocabulary=51_200, batch=1)
        assert model.parameters == pytest.approx(1e9 * float(row["parameters_billion"]), rel=0.04)


def test_memory_by_hand() -> None:
    """A layer has 768 weights and the embedding 800. A micro-batch has 240 numbers."""
    parameters = 2 * 768 / 2 + 800
    assert costs.memory(MODEL, Layout(dp=2, tp=2, pp=2, micro_batch=3)) == {
        "weights": 2 * parameters,
        "gradients": 2 * parameters,
        "optimizer": 6 * parameters,
        "activations": 2 * 2 * 240 * 22,
    }
    few = Layout(dp=2, tp=1, pp=4, micro_batch=12)
    assert costs.memory(MODEL, few)["activations"] == 1 * 1 * 960 * 34


def one_f_one_b(micro_batches: int) -> list[list[Action]]:
    """Return the 1F1B schedule of two stages."""
    first = [forward(0, 0)]
    for i in range(1, micro_batches):
        first += [forward(0, i), backward(0, i - 1)]
    last = [way(1, i) for i in range(micro_batches) for way in (forward, backward)]
    return [[*first, backward(0, micro_batches - 1)], last]


@pytest.mark.parametrize("micro_batch", [1, 4, 8, 24])
def test_two_stages_take_as_long_as_in_a_simulation(micro_batch: int) -> None:
    layout = Layout(dp=1, tp=2, pp=2, micro_batch=micro_batch)
    both = costs.stage_seconds(MODEL, layout, CLUSTER)
    message = CLUSTER.message_seconds(2 * 80 * micro_batch, 0, 2)
    spans = simulate(one_f_one_b(24 // micro_batch), both / 3, 2 * both / 3, message)
    seconds = costs.step_seconds(MODEL, layout, CLUSTER)
    assert seconds == pytest.approx(max(span.end for span in spans))


def test_gradients_use_the_links_of_the_replicas() -> None:
    """Two replicas of four ranks are on two nodes, and two of two ranks on one."""
    sent = 2 * (2 * 768 / 2 + 800)
    for layout, link in (
        (Layout(2, 2, 2, 1), CLUSTER.between),
        (Layout(2, 2, 1, 1), CLUSTER.inside),
    ):
        size = sent if layout.pp == 2 else 2 * (4 * 768 / 2 + 800)
        once = 5e-3 + link.alpha + size / 2 * link.beta
        assert costs.gradient_seconds(MODEL, layout, CLUSTER) == pytest.approx(2 * once)
    assert costs.gradient_seconds(MODEL, Layout(1, 4, 2, 1), CLUSTER) == 0


def test_plans_fit_and_the_fastest_comes_first() -> None:
    plans = costs.plan(MODEL, CLUSTER)
    assert (
        set(plans) == set(costs.possible(MODEL, 8))
        and len(plans) == len(set(plans)) == 2 + 8 + 18 + 16
    )
    times = [costs.step_seconds(MODEL, layout, CLUSTER) for layout in plans]
    assert times == sorted(times)
    need = {layout: sum(costs.memory(MODEL, layout).values()) for layout in plans}
    limit = sorted(need.values())[10]
    fitting = costs.plan(MODEL, replace(CLUSTER, memory=limit))
    assert fitting == [layout for layout in plans if need[layout] <= limit]
    with pytest.raises(ValueError, match=f"the smallest needs {min(need.values()):,.0f}"):
        costs.plan(MODEL, replace(CLUSTER, memory=min(need.values()) - 1))
    with pytest.raises(ValueError, match="none divides the model"):
        costs.plan(MODEL, replace(CLUSTER, nodes=7))
