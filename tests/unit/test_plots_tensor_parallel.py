"""The figures of chapter 04 show the numbers of the formulas."""

from itertools import product

import pytest
from matplotlib.patches import Rectangle

from parlab.costs.tensor_parallel import Layer, activation_bytes
from parlab.plots.tensor_parallel import (
    SCHEMES,
    activation_explorer,
    cut_products,
    layer_layout,
    overlap,
)

MODELS = {"small": Layer(1, 8, 16, 2), "large": Layer(2, 64, 32, 4)}
RANKS = [1, 4]


def test_each_choice_shows_its_bytes() -> None:
    figure = activation_explorer("Bytes", MODELS, RANKS, (1, 0))
    shown = [bar for bar in figure.data if bar.visible and bar.opacity]
    assert len(figure.data) == len(list(product(MODELS, RANKS)))
    assert figure.layout.barmode == "overlay"  # hidden bars would lift stacked ones
    [bar] = shown
    assert list(bar.x) == [name for name, _, _ in SCHEMES]
    assert bar.y == pytest.approx(
        [
            activation_bytes(MODELS["large"], 1, sequence_parallel=shared, recompute=again) / 1e9
            for _, shared, again in SCHEMES
        ]
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_matrix_by_columns_and_one_by_rows_are_cut_into_equal_parts(ranks: int) -> None:
    left, right = cut_products("Cut", ranks).axes
    for axes, x, wide in ((left, 2.0, False), (right, 2.0, True)):
        inside = [
            patch
            for patch in axes.patches
            if isinstance(patch, Rectangle) and x <= patch.get_x() < x + 1.4
        ]
        assert len(inside) == ranks
        for patch in inside:
            width, height = patch.get_width(), patch.get_height()
            assert (width, height) == pytest.approx(
                (1.4, 1.4 / ranks) if wide else (1.4 / ranks, 1.4)
            )


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_is_whole_or_split_by_tokens_outside_the_products(ranks: int) -> None:
    tensor, sequence = layer_layout("A layer", sequence_parallel=True, ranks=ranks).axes
    for axes, outside in ((tensor, 1.0), (sequence, 1 / ranks)):
        areas = [p.get_width() * p.get_height() / 1.2 for p in axes.patches if p.get_fill()]
        assert len(areas) == 5 * ranks
        rows = [areas[i : i + ranks] for i in range(0, len(areas), ranks)]
        for row, held in zip(rows, (outside, 1 / ranks, outside, 1 / ranks, outside), strict=True):
            assert row == pytest.approx([held] * ranks)
    assert len(layer_layout("A layer").axes) == 1


def test_the_lanes_of_overlap_show_the_spans() -> None:
    computing, reducing = [(0.0, 1e-6), (1e-6, 1e-6)], [(1e-6, 5e-6), (6e-6, 5e-6)]
    [axes] = overlap("Overlap", {"two": (computing, reducing)}).axes
    drawn = [[box.get_extents() for box in lane.get_paths()] for lane in axes.collections]
    assert [[(box.x0, box.width) for box in lane] for lane in drawn] == [
        [pytest.approx((1e6 * start, 1e6 * duration)) for start, duration in lane]
        for lane in (computing, reducing)
    ]
