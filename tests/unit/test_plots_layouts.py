"""The picture of the planner has a point and a label for each layout."""

from parlab.layouts import Layout
from parlab.plots.layouts import predicted_and_measured


def test_a_point_for_each_layout_by_its_stages() -> None:
    layouts = [Layout(2, 1, 2, 1), Layout(1, 4, 1, 2), Layout(1, 2, 2, 4)]
    _, axes = predicted_and_measured(layouts, [1.0, 1.1, 3.0], [1.2, 1.3, 3.1])
    equal, *points = axes.lines
    assert list(equal.get_xdata()) == list(equal.get_ydata())
    found = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in points}
    assert found == {"1 stage": [(1.1, 1.3)], "2 stages": [(1.0, 1.2), (3.0, 3.1)]}
    labels = {text.get_text(): text.xy for text in axes.texts}
    assert labels == {"1": (1.0, 1.2), "2": (1.1, 1.3), "3": (3.0, 3.1)}
    assert "emulated" in axes.get_ylabel()
