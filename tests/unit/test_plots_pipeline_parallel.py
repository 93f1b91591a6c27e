"""The figures of chapter 05 show the schedules correctly."""

from itertools import product
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from parlab.costs import pipeline_parallel as costs
from parlab.pipeline import simulate
from parlab.plots import pipeline_parallel as pictures
from parlab.plots.pipeline_policies import schedule, zero_bubble

RANKS, MICRO_BATCHES, CHUNKS = [2, 4], [1, 4, 8], [1, 2]


@pytest.fixture
def figure() -> Any:
    return pictures.schedule_explorer("Bubbles", RANKS, MICRO_BATCHES, CHUNKS, (1, 2, 1))


def move(figure: Any, slider: int, position: int) -> None:
    """Do what Plotly does when a reader moves a slider to a position."""
    [changes, indices] = figure.layout.sliders[slider].steps[position].args
    for name, values in changes.items():
        for index, value in zip(indices, values, strict=True):
            if value is not None:  # null means that this trace has no such property
                figure.data[index][name] = value


def on_the_plot(trace: Any) -> bool:
    y = trace.y0 if trace.type == "heatmap" else trace.y[0]
    return trace.visible and trace.x0 < 2 and y < 50


def shown(figure: Any) -> tuple[list[Any], list[str], list[float]]:
    """Return the visible parts: schedules, lines of text from top to bottom, and dotted lines."""
    shown = [trace for trace in figure.data[4:] if on_the_plot(trace)]
    maps = sorted((t for t in shown if t.type == "heatmap"), key=lambda t: t.y0)
    others = [t for t in shown if t.type == "scatter"]
    texts = sorted((t for t in others if t.mode == "text"), key=lambda t: t.y[0])
    ideal = [t.x0 for t in others if t.mode == "lines"]
    return maps, [t.text[0] for t in texts], ideal


def test_each_choice_shows_its_schedules_after_any_other(figure: Any) -> None:
    for i, j, k in [*product((0, 1), (0, 1, 2), (0, 1)), (0, 0, 0), (1, 2, 1)]:
        for slider, position in ((2, k), (0, i), (1, j)):
            move(figure, slider, position)
        p, m, v = RANKS[i], MICRO_BATCHES[j], CHUNKS[k]
        maps, texts, ideal = shown(figure)
        bubble = costs.bubble(p, m)
        assert texts[0] == f"bubble {bubble:.1%}, holds {m}"
        assert texts[1] == f"bubble {bubble:.1%}, holds {min(p, m)}"
        assert ideal == [pytest.approx(1 / (1 + bubble))]
        widths = [1 + bubble, 1 + bubble]  # over the ideal time
        if m % p:
            assert "needs m =" in texts[2]
        else:
            held = costs.live_interleaved(p, 0, m, v)
            assert texts[2] == f"bubble {costs.bubble(p, m, v):.1%}, holds {held:g}"
            widths.append(1 + costs.bubble(p, m, v))
        assert len(maps) == len(widths)
        for drawn, width in zip(maps, widths, strict=True):
            rows, columns = drawn.z.shape
            assert rows == p
            assert columns * drawn.dx == pytest.approx(width / (1 + bubble))
            assert drawn.x0 == pytest.approx(drawn.dx / 2)  # it begins at the left border


def test_the_explorer_begins_at_the_active_positions(figure: Any) -> None:
    before = shown(figure)[1]
    for slider, position in enumerate((1, 2, 1)):
        move(figure, slider, position)
        assert figure.layout.sliders[slider].active == position
    assert shown(figure)[1] == before == [
        "bubble 37.5%, holds 8", "bubble 37.5%, holds 4", "bubble 18.8%, holds 5.5",
    ]  # fmt: skip


def test_cells_are_units_of_time_and_numbers_mark_starts_of_passes(figure: Any) -> None:
    gpipe = shown(figure)[0][0]
    last = list(gpipe.z[3])
    assert last == [0] * 3 + [1, 2] * 4 + [3, 3, 4, 4] * 4 + [0] * 6
    numbers = [number for number in gpipe.text[3] if number]
    assert numbers[:8] == [str(i) for i in range(8)]  # of forward passes, in black
    assert numbers[8:] == [f"<span style='color:white'>{i}</span>" for i in range(8)]


def test_a_cell_has_a_number_only_if_it_fits() -> None:
    figure = pictures.schedule_explorer("Bubbles", [8], [16], [4], (0, 0, 0))
    gpipe, _, interleaved = shown(figure)[0]
    assert "9" in gpipe.text[0] and "10" not in gpipe.text[0]
    assert not any(number for row in interleaved.text for number in row)


def test_a_picture_shows_each_pass_at_its_time() -> None:
    spans = {
        "a": simulate(schedule("interleaved", 2, 4, 2), 0.5, 1.0),
        "b": zero_bubble("ZB-H1", 3, 4),
    }
    axes = pictures.gantt("Passes", spans, unit=0.5).axes
    for part, drawn in zip(axes, spans.values(), strict=True):
        cells = [p for p in part.patches if isinstance(p, Rectangle) and p.get_linewidth()]
        assert sorted((p.get_y() + 0.4, p.get_x(), p.get_width()) for p in cells) == pytest.approx(
            sorted((s.rank, s.start / 0.5, (s.end - s.start) / 0.5) for s in drawn)
        )
        numbers = [label.get_text() for label in part.texts]
        assert len(numbers) == len(drawn)
        primes = sum(number.endswith("′") for number in numbers)
        assert primes == sum(span.action.stage >= len(part.get_yticks()) for span in drawn)
