"""Still pictures of how ranks are grouped and connected: nodes, subgroups, switches."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parlab.plots.look import NEUTRAL, ink, style
from parlab.plots.still import subplots


def nodes(title: str, count: int, ranks_per_node: int) -> Figure:
    """Draw nodes as boxes of ranks, with links inside and from rank i to rank i of the next."""
    drawn, axis = subplots(title, figsize=(6.4, 1.5 * count + 0.5))
    inside, between = style("compute").colour, style("communication").colour
    for node in range(count):
        y = -2.0 * node
        axis.add_patch(
            Rectangle(
                (-0.6, y - 0.55), ranks_per_node + 0.2, 1.1, facecolor="none", edgecolor=NEUTRAL
            )
        )
        _label(axis, -0.75, y, f"node {node}", ha="right")
        axis.plot([0, ranks_per_node - 1], [y, y], color=inside, linewidth=5, alpha=0.6)
        for i in range(ranks_per_node):
            if node:
                axis.plot([i, i], [y + 0.25, y + 1.75], color=between, linewidth=2, linestyle="--")
            _rank(axis, i, y, node * ranks_per_node + i)
    axis.set_xlim(-2.0, ranks_per_node)
    axis.set_ylim(-2.0 * (count - 1) - 0.8, 0.8)
    return _done(drawn, [axis])


def subgroups(title: str, rows: int, columns: int) -> Figure:
    """Draw the same grid of ranks twice: split into rows, and split into columns.

    Each box is one communicator. Large numbers are ranks of the whole grid; the small number
    below each is the rank in the box.
    """
    drawn, axes = subplots(title, 1, 2, figsize=(8.4, 1.3 * rows + 0.9))
    for axis, by_rows in zip(axes, (True, False), strict=True):
        boxes = rows if by_rows else columns
        for box in range(boxes):
            corner, size = (
                ((-0.45, -box - 0.55), (columns - 0.1, 0.95))
                if by_rows
                else ((box - 0.4, -rows + 0.42), (0.8, rows - 0.05))
            )
            axis.add_patch(Rectangle(corner, *size, facecolor="none", edgecolor=NEUTRAL))
        for rank in range(rows * columns):
            row, column = divmod(rank, columns)
            _rank(axis, column, -row + 0.05, rank, size=20)
            _label(axis, column, -row - 0.38, f"{column if by_rows else row}", fontsize=9)
        name = f"color = rank // {columns}" if by_rows else f"color = rank % {columns}"
        axis.set_title(name, fontsize="medium", color=NEUTRAL)
        axis.set_xlim(-0.6, columns - 0.4)
        axis.set_ylim(-rows + 0.3, 0.6)
    return _done(drawn, axes)


def switches(title: str, crossing: dict[str, int], ranks: int = 8, cables: int = 2) -> Figure:
    """Draw two switches of `ranks` ranks with only `cables` cables between them.

    Args:
        crossing: for each panel, its name and how many ranks of the left switch send to the
            right one in the same round.
    """
    drawn, axes = subplots(title, 1, len(crossing), figsize=(8.6, 2.9))
    busy, idle = style("communication").colour, style("idle").colour
    for axis, (name, senders) in zip(axes, crossing.items(), strict=True):
        for side in range(2):
            left = side * (ranks + 2.0)
            middle = left + (ranks - 1) / 2
            for r in range(ranks):
                sends = r >= ranks - senders if side == 0 else r < senders
                axis.plot(
                    [left + r, middle + 0.5 * (r - (ranks - 1) / 2)],
                    [0, 1.6],
                    color=busy if sends else idle,
                    linewidth=2 if sends else 1,
                    linestyle="-" if sends else ":",
                )
                _rank(axis, left + r, 0, side * ranks + r, size=11, fontsize=7)
            _box(axis, middle, 1.8, "switch")
        ends = (ranks - 1) / 2, ranks + 2.0 + (ranks - 1) / 2
        for cable in range(cables):
            used = cable < senders
            axis.plot(
                ends,
                [1.7 + 0.2 * cable] * 2,
                color=busy if used else idle,
                linewidth=4 if used else 1.5,
                linestyle="-" if used else ":",
                zorder=0,
            )
        messages = "1 message" if senders == 1 else f"{senders} messages"
        _label(axis, sum(ends) / 2, 2.4, f"to the right: {messages}, {cables} cables")
        axis.set_title(name, fontsize="medium", color=NEUTRAL)
        axis.set_xlim(-0.8, 2 * ranks + 1.8)
        axis.set_ylim(-0.5, 2.8)
    return _done(drawn, axes)


def _rank(axis: Any, x: float, y: float, rank: int, size: float = 24, fontsize: float = 12) -> None:
    colour = style("compute").colour
    axis.plot(x, y, "o", markersize=size, color=colour)
    axis.text(
        x, y, rank, ha="center", va="center", color=ink(colour), fontweight="bold",
        fontsize=fontsize,
    )  # fmt: skip


def _box(axis: Any, x: float, y: float, text: str) -> None:
    colour = style("idle").colour
    axis.add_patch(Rectangle((x - 2.2, y - 0.3), 4.4, 0.6, facecolor=colour))
    axis.text(x, y, text, ha="center", va="center", color=ink(colour), fontsize=10)


def _label(
    axis: Any, x: float, y: float, text: str, ha: str = "center", fontsize: float = 10
) -> None:
    axis.text(x, y, text, ha=ha, va="center", fontsize=fontsize, color=NEUTRAL)


def _done(drawn: Figure, axes: Sequence[Any]) -> Figure:
    """Hide the axes, and close the figure so that only the cell's own output shows it."""
    for axis in axes:
        axis.axis("off")
    plt.close(drawn)
    return drawn
