"""Bars of a rank's memory, by kind."""

from collections.abc import Mapping
from typing import Any

from parlab.plots.look import NEUTRAL
from parlab.plots.still import hatched, subplots


def memory_bars(
    title: str, ways: Mapping[str, Mapping[str, float]], axis: str = "MB on rank 0"
) -> tuple[Any, Any]:
    """Draw a bar for each way to train, with the kinds of memory stacked.

    Args:
        title: the picture's message.
        ways: bytes by kind (a role of `plots.ROLES`), by the way's name; all have the same kinds.
        axis: the name of the vertical axis.

    Returns:
        matplotlib's figure and axes.
    """
    drawn, axes = subplots(title)
    bottom = [0.0] * len(ways)
    for kind in next(iter(ways.values())):
        heights = [held[kind] / 1e6 for held in ways.values()]
        axes.bar(list(ways), heights, bottom=bottom, **hatched(kind))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel(axis)
    axes.legend(frameon=False, labelcolor=NEUTRAL)
    return drawn, axes
