"""Bars that compare the learner's code with a library."""

from collections.abc import Collection, Mapping
from typing import Any

from parlab.plots.look import NEUTRAL
from parlab.plots.still import hatched, subplots


def ratio_bars(
    title: str,
    panels: Mapping[str, Mapping[str, float]],
    axis: str = "time / time of the library",
    libraries: Collection[str] = (),
) -> tuple[Any, Any]:
    """Draw a horizontal bar for each ratio, with a line at 1, where both sides are equal.

    Args:
        title: the picture's message.
        panels: by title, the ratios by name, from top to bottom; all panels have the same names.
        axis: the name of the horizontal axes.
        libraries: the names that are drawn in the library's look.

    Returns:
        matplotlib's figure and its axes, one for each panel.
    """
    drawn, axes = subplots(title, 1, len(panels), sharey=True, squeeze=False)
    for panel, (name, ratios) in zip(axes[0], panels.items(), strict=True):
        rows = range(len(ratios) - 1, -1, -1)
        for row, (bar, ratio) in zip(rows, ratios.items(), strict=True):
            role = "library" if bar in libraries else "reference"
            panel.barh(row, ratio, height=0.7, **hatched(role))
        panel.axvline(1, color=NEUTRAL, linewidth=1)
        panel.set_title(name)
        panel.set_yticks(rows, list(ratios))
    drawn.supxlabel(axis, color=NEUTRAL, fontsize="medium")
    return drawn, axes[0]
