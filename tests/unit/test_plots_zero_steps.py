"""The drawings of ZeRO over memory and time show what the chapter says."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from parlab.plots.look import series, style
from parlab.plots.zero_steps import hybrid_groups, offload_steps, shard_layouts, unit_lifetimes


def bars(figure: Figure, role: str, panel: int = 0) -> list[tuple[float, float, float]]:
    """Return row, start, and end of the rectangles in a role's color, by row and start."""
    colour = to_rgba(style(role).colour)[:3]
    found = [p for p in figure.axes[panel].patches if p.get_facecolor()[:3] == colour]
    rows = [(p.get_y() + p.get_height() / 2, p.get_x(), p.get_width()) for p in found]
    return sorted((round(row, 6), x, x + width) for row, x, width in rows)


def test_each_rank_owns_equally_much_in_both_layouts() -> None:
    figure = shard_layouts("Shards", {"A": 4, "B": 8, "C": 6}, ranks=4)
    for rank in range(4):
        colour = to_rgba(series(rank, "").colour)
        owned = [p for p in figure.axes[0].patches if p.get_facecolor() == colour]
        assert [p.get_width() for p in owned if p.get_y() == 1.0] == [5]
        assert [p.get_width() for p in owned if p.get_y() == 0.0] == [1, 2, 2]


def test_layers_that_need_no_padding_have_none() -> None:
    for sizes, paddings in (({"A": 4, "B": 8}, 0), ({"A": 3, "B": 8}, 2)):
        drawn = shard_layouts("Shards", sizes, ranks=4).axes[0].patches
        assert sum(p.get_hatch() == "xxx" for p in drawn) == paddings


def test_units_compute_only_while_they_are_whole() -> None:
    figure = unit_lifetimes("Units", blocks=3)
    whole, computing = bars(figure, "parameters"), bars(figure, "compute")
    assert [row for row, *_ in whole] == [0, 1, 1, 2, 2, 3, 3]
    for row, start, end in computing:
        assert any(row == r and a <= start and end <= b for r, a, b in whole)
    # The backward pass takes blocks from the last to the first.
    backward = {row: start for row, start, _ in computing if row > 0}
    assert backward[3] < backward[2] < backward[1]


def test_at_most_two_blocks_are_whole_at_the_same_time() -> None:
    spans = [
        (start, end) for row, start, end in bars(unit_lifetimes("Units", 4), "parameters") if row
    ]
    for moment, _ in spans:
        assert sum(start <= moment < end for start, end in spans) <= 2


def test_the_delayed_update_overlaps_with_the_next_step() -> None:
    figure = offload_steps("Offload", forward=1.0, gradients=1.5, adam=1.5, parameters=1.0)
    waits, delayed = (bars(figure, "compute", panel) for panel in (0, 1))
    assert [start for _, start, _ in waits] == pytest.approx([0, 1, 5.5, 6.5, 11, 12])
    assert [start for _, start, _ in delayed] == pytest.approx([0, 1, 3, 4, 6, 7])


def test_a_step_waits_for_gradients_on_a_slow_link() -> None:
    figure = offload_steps("Offload", forward=1.0, gradients=4.0, adam=0.5, parameters=0.5)
    updates = bars(figure, "optimizer_states")
    assert [start for _, start, _ in updates] == pytest.approx([5, 11, 17])


def test_every_node_holds_every_shard() -> None:
    axes = hybrid_groups("Hybrid", nodes=3, ranks=2).axes[0]
    shards = [text.get_text() for text in axes.texts if text.get_text().startswith("shard")]
    assert shards == ["shard 0", "shard 1"] * 3
    # One arrow in each node, and two between each node and the next.
    assert sum(text.get_text() == "" for text in axes.texts) == 3 + 2 * 2
