"""Still pictures of data parallelism: a step on several ranks, and who gets which samples."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from parlab.plots.look import NEUTRAL, SERIES, style
from parlab.plots.still import subplots

COLUMN, WIDTH, HEIGHT = 2.6, 2.2, 0.62


def _box(axes: Any, x: float, y: float, text: str, colour: str, width: float = WIDTH) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - HEIGHT / 2), width, HEIGHT,
            boxstyle="round,pad=0.02,rounding_size=0.12", facecolor=colour, edgecolor="none",
        )
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", color="white", fontsize=10)


def _arrow(axes: Any, x: float, top: float, bottom: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (x, top - HEIGHT / 2 - 0.05), (x, bottom + HEIGHT / 2 + 0.05),
            arrowstyle="-|>", mutation_scale=12, color=NEUTRAL, shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def one_step(title: str, ranks: int = 4) -> Figure:
    """What happens in a training step, from top to bottom, a column for each rank."""
    rows = [4.4, 3.3, 2.2, 1.1, 0.0]
    figure, axes = subplots(title, figsize=(8.5, 4.2))
    weights, gradients = style("parameters").colour, style("gradients").colour
    middle = COLUMN * (ranks - 1) / 2
    for rank in range(ranks):
        x = COLUMN * rank
        axes.text(x, 5.05, f"rank {rank}", ha="center", color=NEUTRAL, fontsize=11)
        _box(axes, x, rows[0], f"shard {rank} of the batch", SERIES[rank % len(SERIES)].colour)
        _box(axes, x, rows[1], "same weights", weights)
        _box(axes, x, rows[2], f"gradient {rank}", gradients)
        _box(axes, x, rows[4], "same step", weights)
        for top, bottom in pairwise(rows):
            _arrow(axes, x, top, bottom)
    width = COLUMN * (ranks - 1) + WIDTH
    _box(axes, middle, rows[3], "all-reduce: everyone gets the weighted mean",
         style("communication").colour, width)  # fmt: skip
    axes.set(xlim=(-1.3, COLUMN * (ranks - 1) + 1.3), ylim=(-0.45, 5.4))
    axes.axis("off")
    plt.close(figure)  # the cell shows what it returns, and would show it twice
    return figure


def dealt(title: str, shuffle: Sequence[int], batch_size: int, ranks: int) -> Figure:
    """A shuffle cut into global batches, and each batch dealt out to the ranks like cards."""
    figure, axes = subplots(title, figsize=(8.5, 2.0))
    x = 0.0
    for start in range(0, len(shuffle), batch_size):
        batch = shuffle[start : start + batch_size]
        axes.text(
            x + len(batch) / 2 - 0.5, 0.85, f"step {start // batch_size}",
            ha="center", color=NEUTRAL, fontsize=10,
        )  # fmt: skip
        for place, index in enumerate(batch):
            _box(axes, x, 0.2, str(index), SERIES[place % ranks].colour, width=0.8)
            axes.text(x, -0.45, f"rank {place % ranks}", ha="center", color=NEUTRAL, fontsize=8)
            x += 1.0
        x += 0.6
    axes.set(xlim=(-0.7, x - 0.9), ylim=(-0.7, 1.2))
    axes.axis("off")
    plt.close(figure)  # the cell shows what it returns, and would show it twice
    return figure
