"""The figures of chapter 10 show the data that they are given."""

import pytest

from parlab.costs.composing import Parts
from parlab.plots import composing as pictures


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_ranks_of_a_group_look_the_same() -> None:
    axes = pictures.groups("Groups", {"pairs": [[0, 2], [1, 3]], "one": [[0, 1, 2, 3]]}, 2).axes
    colors = [[patch.get_facecolor() for patch in one.patches] for one in axes]
    names = [[name for name in texts(one) if name.isdigit()] for one in axes]
    assert names == [["0", "2", "1", "3"], ["0", "1", "2", "3"]]
    assert colors[0][0] == colors[0][1] != colors[0][2] == colors[0][3]
    assert len(set(colors[1])) == 1
    places = {
        int(name): patch.get_y() for name, patch in zip(names[1], axes[1].patches, strict=True)
    }
    assert places[0] == places[1] > places[2] == places[3]  # a row for each node


def test_the_parts_of_a_step_add_up_to_its_bar() -> None:
    steps = {"a": Parts(6, 1, 1, 1, 0.5, 0.5), "b": Parts(1, 1, 0, 0, 0, 0)}
    axes = pictures.step_shares("Shares", steps).axes[0]
    bars = [container.patches for container in axes.containers]
    assert [bar.get_width() for bar in bars[0]] == pytest.approx([60, 50])
    assert sum(part[0].get_width() for part in bars) == pytest.approx(100)
    ends = [part[0].get_x() + part[0].get_width() for part in bars]
    assert [part[0].get_x() for part in bars[1:]] == pytest.approx(ends[:-1])


def test_the_chart_leads_from_questions_to_answers() -> None:
    ask = pictures.Question
    figure = pictures.decision_chart(
        "Chart",
        [
            ask("first?", [("yes", "do A", "1 s")]),
            ask("second?", [("yes", "do B", "2 s"), ("no", "do C", "3 s")], second="third?"),
        ],
        last=ask("fourth?", [("yes", "do D", "4 s"), ("no", "do E", "5 s")]),
    )
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    heights = [places[f"do {letter}"][1] for letter in "ABCDE"]
    assert heights == sorted(heights, reverse=True) and len(set(heights)) == 5
    assert places["first?"][1] == pytest.approx(places["do A"][1], abs=0.2)
    assert places["second?"][1] == places["third?"][1] > places["fourth?"][1]
    assert texts(figure.axes[0]).count("no") == 4  # to the second and fourth questions, C, and E
