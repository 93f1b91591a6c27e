"""The drawing of all plans shows what the lab says."""

import pytest

from parlab.costs.recomputation import Segment
from parlab.plots.memory_plans import frontier, plan_frontier

CHAIN = [Segment(1, 10, 12, 5), Segment(2, 8, 30, 7), Segment(3, 4, 6, 11)]


def test_a_frontier_has_no_plan_that_another_one_beats() -> None:
    assert frontier([(3, 5), (1, 9), (2, 9), (4, 5), (4, 2)]) == [(1, 9), (3, 5), (4, 2)]


def test_all_plans_and_measured_steps_are_drawn() -> None:
    figure = plan_frontier("Plans", CHAIN, {"yours": (31_000_000, 23)}, budget=35_000_000)
    (axes,) = figure.axes
    points = {tuple(point) for point in axes.collections[0].get_offsets().tolist()}
    assert (31 / 1e6, 5 / 23) in points
    assert (40 / 1e6, 0.0) in points
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn["frontier"] == [[31 / 1e6, 5 / 23], [40 / 1e6, 0.0]]
    assert drawn["yours, measured"] == [[31.0, 1.0]]
    assert drawn["budget"][0][0] == 35.0


def test_too_many_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 14"):
        plan_frontier("Plans", [CHAIN[0]] * 15, {}, budget=1)
