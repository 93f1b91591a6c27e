"""Curves that should be one: what parallel training is held against."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, subplots

_WIDEST, _NARROWEST = 8.0, 2.0  # points


def same_curves(
    title: str, panels: Mapping[str, Mapping[str, Sequence[float]]], loss: str = "loss"
) -> tuple[Any, Any]:
    """Losses, step by step, of runs that should be equal: wide lines below, narrow ones on top.

    Args:
        title: the picture's message.
        panels: by title, each run's losses by its name; all panels have the same runs.
        loss: what the vertical axes are called; those of a row have the same scale.

    Returns:
        matplotlib's figure and its axes, two to a row.
    """
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    size = (6.4, 3.6) if rows == 1 else (9.0, 3.2 * rows)
    drawn, axes = subplots(title, rows, columns, sharey="row", squeeze=False, figsize=size)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    for panel, (name, runs) in zip(axes.flat, panels.items(), strict=False):
        thinner = (_WIDEST - _NARROWEST) / max(len(runs) - 1, 1)
        for i, (who, values) in enumerate(runs.items()):
            look = artist(series(i, who)) | {"linewidth": _WIDEST - thinner * i, "marker": ""}
            panel.plot(values, **look | {"alpha": 0.8})
        panel.set(title=name, xlabel="step" if rows == 1 else "")
    for left in axes[:, 0]:
        left.set_ylabel(loss)
    if rows > 1:
        for bottom in axes[-1]:
            bottom.set_xlabel("step")
    axes[0, 0].legend(frameon=False, labelcolor=NEUTRAL)
    return drawn, axes
