"""Steps of layouts on the emulated network take as long as the planner's formulas predict."""

import pytest

from parlab.costs.collectives import Link
from parlab.costs.layouts import step_seconds
from parlab.layout_runs import measured_seconds, rank_correlation
from parlab.layouts import Cluster, Layout, Model
from tests.ranks.network_times import TRIES
from tests.support.on_ranks import Cases, World

cases = Cases()

MODEL = Model(layers=2, hidden=16, heads=4, sequence=16, vocabulary=64, batch=8)
# Passes, messages, and collectives each take a good part of a step.
CLUSTER = Cluster(2, 2, 1e9, 16e6, Link.of(1e-3, 40e3), Link.of(1e-3, 80e3), call=10e-3)
LATE = 1.25  # tolerated ratio of measured and predicted times


@cases.add(layout=[(4, 1, 1, 2), (2, 2, 1, 4), (1, 2, 2, 4)])
def a_step_takes_what_the_planner_says(world: World, layout: tuple[int, ...]) -> None:
    """A step never takes less time, and at least once, it takes only a little more."""
    one = Layout(*layout)
    predicted = step_seconds(MODEL, one, CLUSTER)
    took = []
    for _ in range(TRIES):
        took += measured_seconds(MODEL, [one], CLUSTER, rounds=1)
        assert took[-1] >= 0.99 * predicted, f"took {took[-1]} s, sooner than {predicted:.3f} s"
        if took[-1] < LATE * predicted:
            return
    raise AssertionError(f"took {min(took):.3f} s or more, not {predicted:.3f} s")


@cases.add()
def the_correlation_is_of_ranks(world: World) -> None:
    assert rank_correlation([1, 2, 3, 4], [0.1, 5, 6, 100]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
