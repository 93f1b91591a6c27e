"""The figures of chapter 08 show the data that they are given."""

import numpy as np
import pytest

from parlab.costs.memory import Step, forward_flop, frontier
from parlab.costs.tensor_parallel import Layer
from parlab.plots import memory_curves as pictures


def test_a_panel_for_each_run_with_its_peak() -> None:
    runs = {"whole": ([1e6, 3e6, 2e6], 2), "less": ([1e6, 1e6, 1.5e6, 1e6], 1)}
    panels = pictures.timeline("Memory", runs).axes
    assert [axes.get_title() for axes in panels] == list(runs)
    for axes, (live, forward), peak in zip(panels, runs.values(), (3.0, 1.5), strict=True):
        curve, end = axes.lines
        assert list(curve.get_ydata()) == [size / 1e6 for size in live]
        assert end.get_xdata()[0] == forward
        assert [text.get_text() for text in axes.texts] == [f"peak {peak} MB"]


def test_segments_in_megabytes() -> None:
    formula, points = pictures.segments("Peak", [1, 2], [4e6, 3e6], {1: 5e6, 2: 3.5e6}).data
    assert list(formula.y) == [4, 3]
    assert dict(zip(points.x, points.y, strict=True)) == {1: 5, 2: 3.5}


def test_each_length_shows_its_own_frontier() -> None:
    lengths = [1024, 4096]
    figure = pictures.plan_explorer("Plans", 512, 8, lengths, 1)
    for position, length in enumerate(lengths):
        visible = figure.layout.sliders[0].steps[position].args[1]
        shown = [trace for trace, seen in zip(figure.data, visible, strict=True) if seen]
        layer = Layer(1, length, 512, 8)
        for fused, trace in zip((False, True), shown, strict=False):
            plans = frontier(layer, fused=fused)
            assert list(trace.y) == pytest.approx([plan.bytes / layer.numbers for plan in plans])
            step = 3 * forward_flop(layer)
            assert list(trace.x) == pytest.approx([plan.flop / step for plan in plans])
        assert (shown[2].x, shown[2].y) == ((pytest.approx(1 / 3),), (2,))
    assert [trace.visible for trace in figure.data] == 3 * [False] + 3 * [True]


def test_both_moments_have_the_same_scale() -> None:
    exact = np.outer([1.0, 2.0, 4.0], [1.0, 10.0]) * [[1.0, 1.1], [0.9, 1.0], [1.0, 1.0]]
    factored = np.outer(exact.sum(1), exact.sum(0)) / exact.sum()
    left, right, _ = pictures.second_moments("Moments", exact, factored).axes
    for axes, values in ((left, exact), (right, factored)):
        assert np.array_equal(axes.images[0].get_array(), values)
    assert left.images[0].get_clim() == right.images[0].get_clim()


def test_errors_are_those_of_the_nearest_code() -> None:
    codes = np.array([0.5, 0.0, 1.0, 0.1])
    numbers = np.array([1e-3, 0.04, 0.06, 0.29, 0.31, 0.74, 0.76, 1.0])
    nearest = [codes[np.abs(codes - x).argmin()] for x in numbers]
    expected = np.abs(nearest - numbers) / numbers
    assert pictures.nearest_errors(numbers, codes) == pytest.approx(expected)
    figure = pictures.code_errors("Errors", {"coarse": [0, 0.5, 1], "fine": np.linspace(0, 1, 256)})
    coarse, fine = (np.mean(trace.y) for trace in figure.data)
    assert fine < coarse


def test_the_bars_of_a_ladder_add_up_to_its_steps() -> None:
    step = Step(4, 256, 4, 1000, 128, 8)
    steps = {"first": step, "then": step.but(micro_batch=1)}
    figure = pictures.ladder("Ladder", {name: of.bytes() for name, of in steps.items()}, 5e6)
    assert {name for bar in figure.data for name in bar.y} == set(steps)
    for place, of in enumerate(steps.values()):
        assert sum(bar.x[place] for bar in figure.data) == pytest.approx(of.total() / 1e9)
    assert figure.layout.shapes[0].x0 == 0.005
