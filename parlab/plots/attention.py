"""A picture of attention in tiles: the tiles that one program reads, computes, and drops."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.plots.kernels import bare, finished, legend
from parlab.plots.look import NEUTRAL, Style, series, style
from parlab.plots.still import hatched, subplots

_READ = Style("read now", series(2, "").colour)
_NOW = Style("computed now", style("compute").colour)
_DROPPED = Style("used, then dropped", style("idle").colour, hatch="///")
_KEPT = Style("kept in registers", series(3, "").colour)


def attention_tiles(title: str, rows: int, columns: int, program: int, step: int) -> Figure:
    """Draw the tiles of the scores, and the tiles of Q, K, V, and the output in step `step`.

    Program `program` handles one row of tiles and goes through its `columns` from left to right.
    """
    figure, axes = subplots(title, figsize=(7.2, 4.6))
    left, top, right = 2.0, 3.2, 2.0 + columns + 0.8
    for row in range(rows):
        for column in range(columns):
            is_current = row == program
            tile_style = _NOW if column == step else _DROPPED if column < step else None
            _tile(axes, left + column, top + row, tile_style if is_current else None)
        _tile(axes, 0.4, top + row, _KEPT if row == program else None)
        _tile(axes, right, top + row, _KEPT if row == program else None)
    for column in range(columns):
        for height in (0.4, 1.6):
            _tile(axes, left + column, height, _READ if column == step else None)
    text = {"color": NEUTRAL, "fontsize": 12, "va": "center"}
    axes.text(left - 0.25, 0.9, "K", ha="right", **text)
    axes.text(left - 0.25, 2.1, "V", ha="right", **text)
    axes.text(0.9, top - 0.4, "Q", ha="center", **text)
    axes.text(right + 0.5, top - 0.4, "output", ha="center", **text)
    axes.text(left + columns / 2, top - 0.28, "scores", ha="center", **text)
    axes.text(right + 1.3, top + program + 0.5, f"program {program}", ha="left", **text)
    axes.set(xlim=(0, right + 3.6), ylim=(top + rows + 0.2, 0.2), aspect="equal")
    bare(axes)
    legend(
        figure,
        [Patch(**hatched(tile_style)) for tile_style in (_READ, _NOW, _KEPT, _DROPPED)],
        columns=2,
    )
    return finished(figure)


def _tile(axes: Axes, x: float, y: float, tile_style: Style | None) -> None:
    if tile_style is None:
        drawn = {"fill": False, "ec": NEUTRAL, "lw": 0.6, "alpha": 0.6}
    else:
        drawn = hatched(tile_style)
    axes.add_patch(Rectangle((x + 0.05, y + 0.05), 0.9, 0.9, **drawn))
