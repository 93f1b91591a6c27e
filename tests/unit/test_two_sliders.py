"""Two sliders that work independently of each other."""

from itertools import product
from typing import Any

import pytest

from parlab import plots
from parlab.plots.two_sliders import add_two_sliders

FIRST, SECOND = ("a", "b"), ("1", "2", "3")


@pytest.fixture
def figure() -> Any:
    made = plots.figure("Two parameters")
    made.add_scatter(x=[0], y=[0], name="always")
    traces = {
        pair: [{"type": "scatter", "x": [0], "y": [1], "name": "".join(pair)}]
        for pair in product(FIRST, SECOND)
    }
    add_two_sliders(made, ("letter:", "digit:"), traces, active=(1, 2))
    return made


def move(figure: Any, slider: int, position: int) -> None:
    """Do what Plotly does when a reader moves a slider to a position."""
    [changes, indices] = figure.layout.sliders[slider].steps[position].args
    for name, values in changes.items():
        for index, value in zip(indices, values, strict=True):
            figure.data[index][name] = value


def shown(figure: Any) -> list[str]:
    """Return the visible traces. Only these are in the legend and react to the pointer."""
    shown = []
    for trace in figure.data:
        drawn = trace.visible is not False and trace.opacity != 0
        if drawn:
            shown.append(trace.name)
        elif trace.visible:
            assert (trace.hoverinfo, trace.showlegend) == ("skip", False)
    return shown


def test_the_sliders_begin_at_the_active_positions(figure: Any) -> None:
    assert shown(figure) == ["always", "b3"]


def test_each_pair_of_positions_shows_its_traces_after_any_other(figure: Any) -> None:
    for (i, letter), (j, digit) in product(enumerate(FIRST), enumerate(SECOND)):
        move(figure, 0, i)
        move(figure, 1, j)
        assert shown(figure) == ["always", f"{letter}{digit}"]


def test_sliders_say_what_they_choose(figure: Any) -> None:
    letter, digit = figure.layout.sliders
    assert [step.label for step in letter.steps] == list(FIRST)
    assert [step.label for step in digit.steps] == list(SECOND)
    assert (letter.currentvalue.prefix, digit.currentvalue.prefix) == ("letter: ", "digit: ")
