"""The drawings of a step's memory show what was recorded."""

import pytest
import torch

from parlab import memory
from parlab.costs.recomputation import Segment
from parlab.plots.memory_steps import frontier, memory_over_time, plan_frontier

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


def recorded(size: int) -> memory.History:
    with memory.History() as history:
        x = torch.ones(size)
        history.mark("middle")
        x.double().sum()
    return history


def test_a_line_for_each_run_with_its_peak_and_its_mark() -> None:
    histories = {"small": recorded(250_000), "large": recorded(500_000)}
    figure, axes = memory_over_time("Memory", histories, "middle")
    lines = [list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) > 1]
    assert [[round(y, 3) for y in line] for line in lines] == [[1, 3, 3], [2, 6, 6]]
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[1::2]]
    assert dots == [(0, 1), (0, 2)], "after the first operation"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["small: peak 3.0 MB", "large: peak 6.0 MB"]
