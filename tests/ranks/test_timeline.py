"""Timelines: idle time, pictures, and one clock for real ranks."""

import json
from collections.abc import Iterator

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from parlab.timeline import Span, draw, records, with_idle


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    mpl.use("agg")
    yield
    plt.close("all")


def span(rank: int, kind: str, start: float, end: float) -> Span:
    return Span(rank, "work", kind, start, end)


def test_idle_fills_the_gaps() -> None:
    spans = [
        span(0, "compute", 1, 3),
        span(0, "communication", 2, 4),
        span(0, "compute", 6, 7),
        span(1, "compute", 0, 5),
    ]
    idle = [s for s in with_idle(spans) if s.kind == "idle"]
    assert [(s.rank, s.start, s.end) for s in idle] == [(0, 0, 1), (0, 4, 6), (1, 5, 7)]
    assert [s for s in with_idle(spans) if s.kind != "idle"] == spans
    assert with_idle([]) == []


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of compute, communication, idle"):
        span(0, "sleeping", 0, 1)


def test_spans_as_plain_data() -> None:
    (record,) = json.loads(json.dumps(records([span(2, "compute", 0.5, 0.75)])))
    assert record == {"rank": 2, "name": "work", "kind": "compute", "start": 0.5, "end": 0.75}


def bars(axes) -> list[tuple[float, float, float, float]]:
    """Return the left, right, top, and bottom of each bar, rounded."""
    extents = [bar.get_paths()[0].get_extents() for bar in axes.collections]
    return [tuple(round(v, 6) for v in (e.x0, e.x1, e.y0, e.y1)) for e in extents]


def test_one_row_a_rank_in_milliseconds() -> None:
    spans = [span(0, "compute", 0, 0.001), span(3, "communication", 0.001, 0.004)]
    figure, axes = draw(with_idle(spans), "Two ranks")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 3"]
    assert bars(axes) == [
        (0, 1, -0.4, 0.4),
        (1, 4, -0.4, 0.4),
        (0, 1, 0.6, 1.4),
        (1, 4, 0.6, 1.4),
    ]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(legend) == ["communication", "compute", "idle"]
    figure.canvas.draw()


def test_overlap_is_seen_in_halves_of_a_row() -> None:
    spans = [span(0, "compute", 0, 0.002), span(0, "communication", 0.001, 0.003)]
    _, axes = draw(spans, "Communication overlaps the backward pass")
    assert bars(axes) == [(0, 2, -0.4, 0), (1, 3, 0, 0.4)]


def test_names_of_overlapping_spans_are_in_their_visible_parts() -> None:
    below = Span(0, "bucket 0", "communication", 0.0, 0.006)
    _, axes = draw([below, Span(0, "bucket 1", "communication", 0.004, 0.01)], "Two messages")
    where = {text.get_text(): text.get_position()[0] for text in axes.texts}
    assert where == {"bucket 0": pytest.approx(2), "bucket 1": pytest.approx(7)}

    _, axes = draw([below, Span(0, "bucket 1", "communication", 0.0001, 0.01)], "Hardly seen")
    assert [text.get_text() for text in axes.texts] == ["bucket 1"]


def test_passes_of_almost_equal_length_all_show_their_names() -> None:
    # As in an interleaved pipeline: each pass takes a little more than 30 of 900 ms.
    starts = [0.1 * i for i in range(9)]
    spans = [Span(0, f"B{i}", "compute", at, at + 0.03 + 1e-4 * i) for i, at in enumerate(starts)]
    _, axes = draw([*spans, Span(1, "F0", "compute", 0.885, 0.9)], "Passes")
    assert [text.get_text() for text in axes.texts] == [f"B{i}" for i in range(9)]


def test_nothing_recorded_is_an_empty_picture() -> None:
    figure, _ = draw([], "Nothing")
    figure.canvas.draw()
