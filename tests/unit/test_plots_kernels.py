"""The figures of chapter 07 show the numbers of the formulas."""

from itertools import product
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from parlab.costs import kernels as costs
from parlab.plots import kernels as pictures
from parlab.plots.attention import attention_tiles

ROOFS = {
    "one": [costs.Device("BF16", 8e14, 2e12), costs.Device("FP32", 4e13, 2e12)],
    "other": [costs.Device("BF16", 1e15, 4e12), costs.Device("FP32", 6e13, 4e12)],
}
KERNELS = {
    n: [("product", costs.matmul(int(n), int(n), int(n)), 0), ("sum", costs.add(9), 1)]
    for n in ("64", "4096")
}


def hatches(figure: Any) -> list[str]:
    return [patch.get_hatch() or "" for patch in figure.axes[0].patches]


def test_a_grid_masks_numbers_beyond_the_end() -> None:
    figure = pictures.grid("Grid", 30, 8)
    assert len(hatches(figure)) == 32
    assert sum(map(bool, hatches(figure))) == 2
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [t for t in texts if t.startswith("program")] == [f"program {i}" for i in range(4)]
    assert "29" in texts and "30" not in texts


def test_a_load_shows_its_sectors_and_the_requested_numbers() -> None:
    loads = {"neighbors": (1, 0), "late": (1, 4), "every 8th": (8, 0)}
    [axes] = pictures.warp_loads("Loads", loads).axes
    for row, (stride, start) in enumerate(loads.values()):
        of_row = [p for p in axes.patches if round(p.get_y() + 0.3) == row and p.get_fill()]
        sectors = [p.get_x() for p in of_row if p.get_width() == 1]
        numbers = [p.get_x() for p in of_row if p.get_width() == 4 / 32]
        assert sectors == costs.sectors_touched(stride, 4, start)
        assert numbers == [(start + lane * stride * 4) / 32 for lane in range(32)]
    assert [t.get_text() for t in axes.texts] == ["4, 100%", "5, 80%", "32, 12.5%"]


def test_orders_show_the_bands_that_their_tiles_need() -> None:
    taken = {"rows": costs.row_major(4, 4), "groups": costs.grouped(4, 4, 2)}
    figure = pictures.orders("Orders", 4, 4, taken)
    for axes, (name, tiles) in zip(figure.axes, taken.items(), strict=True):
        filled = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_fill()]
        assert len(filled) == costs.blocks_loaded(tiles[:4], 4) + 4
        assert axes.get_title() == f"{name}: {costs.blocks_loaded(tiles[:4], 4)} blocks"


def test_stages_are_drawn_as_they_are_computed() -> None:
    figure = pictures.stages("Stages", 4, 3.0, 1.0, [1, 2])
    for axes, count in zip(figure.axes, (1, 2), strict=True):
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [*(f"buffer {i}" for i in range(count)), "products"]
        bars: dict[int, list[float]] = {}
        for patch in axes.patches:
            middle = patch.get_x() + patch.get_width() / 2
            bars.setdefault(round(patch.get_y() + 0.36), []).append(middle)
        loads, computes = costs.staged(4, 3.0, 1.0, count)
        assert axes.get_title().endswith(f": {computes[-1][1]:g} units of time")
        assert bars[count] == pytest.approx([sum(span) / 2 for span in computes])
        for buffer in range(count):
            middles = [sum(span) / 2 for span in loads[buffer::count]]
            assert bars[buffer] == pytest.approx(middles)


def test_attention_keeps_one_tile_of_scores() -> None:
    [axes] = attention_tiles("Attention", 3, 4, program=1, step=2).axes
    filled = [patch for patch in axes.patches if patch.get_fill()]
    # Q and the output of one program, K and V of one step, and two earlier and one current tile.
    assert len(filled) == 2 + 2 + 3
    assert len([patch for patch in filled if patch.get_hatch()]) == 2


def test_a_device_has_programs() -> None:
    texts = [text.get_text() for text in pictures.device("Device").axes[0].texts]
    assert texts.count("program") == 8


@pytest.fixture
def figure() -> Any:
    return pictures.roofline("Roof", ROOFS, KERNELS, ("device:", "n ="), (1, 0))


def move(figure: Any, slider: int, position: int) -> None:
    """Do what Plotly does when a reader moves a slider to a position."""
    [changes, indices] = figure.layout.sliders[slider].steps[position].args
    for name, values in changes.items():
        for index, value in zip(indices, values, strict=True):
            figure.data[index][name] = value


def test_each_choice_shows_its_kernels_under_its_roof(figure: Any) -> None:
    for (i, devices), (j, points) in product(
        enumerate(ROOFS.values()), enumerate(KERNELS.values())
    ):
        move(figure, 1, j)
        move(figure, 0, i)
        shown = [trace for trace in figure.data if trace.visible and trace.opacity]
        assert len(shown) == len(devices) + len(points)
        for trace, device in zip(shown, devices, strict=False):
            assert trace.x[1] == device.ridge
            assert list(trace.y[1:]) == [pytest.approx(device.flop_per_second)] * 2
        for trace, (name, moved, under) in zip(shown[len(devices) :], points, strict=True):
            assert trace.name == name
            assert trace.x[0] == moved.intensity
            assert trace.y[0] == devices[under].attainable(moved.intensity)


def test_measured_kernels_are_at_their_measured_rates() -> None:
    roof = costs.Device("CPU", 1e11, 1e10)
    found = {"x + y": (costs.add(1000), 2e-6)}
    made = pictures.measured_roofline("Measured", roof, found, (-2, 3), (8, 12))
    ceiling, point = made.data
    assert ceiling.x[1] == 10
    assert (point.x[0], point.y[0]) == (1 / 12, pytest.approx(5e8))
