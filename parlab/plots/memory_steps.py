"""Drawings of the memory that a training step of a lab uses."""

from collections.abc import Mapping
from typing import Any

from parlab.memory import History
from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, subplots


def memory_over_time(title: str, runs: Mapping[str, History], mark: str) -> tuple[Any, Any]:
    """Draw a line for each run: the memory of its tensors after each operation. Name the peaks.

    Args:
        title: the picture's message.
        runs: recorded histories by name.
        mark: the name of a mark in all histories. Each line has a dot there.

    Returns:
        matplotlib's figure and axes.
    """
    drawn, axes = subplots(title)
    for i, (name, history) in enumerate(runs.items()):
        look = artist(series(i, f"{name}: peak {history.peak / 1e6:.1f} MB")) | {"marker": ""}
        megabytes = [size / 1e6 for size in history.bytes]
        axes.plot(megabytes, **look)
        at = history.marks[mark] - 1  # the last operation before it
        place = at, megabytes[at]
        axes.plot(*place, "o", color=look["color"], markersize=7)
        if i == 0:
            axes.annotate(mark, place, (9, 0), textcoords="offset points", color=NEUTRAL)
    axes.set(xlabel="operations", ylabel="MB of tensors", ylim=(0, None))
    drawn.legend(loc="outside lower center", frameon=False, labelcolor=NEUTRAL)
    return drawn, axes
