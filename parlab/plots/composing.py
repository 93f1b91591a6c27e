"""Figures of chapter 10 on meshes, the time of a step, and the choice of a layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from parlab.costs.composing import Parts
from parlab.plots.all_to_all import TEXT, bare, box
from parlab.plots.look import NEUTRAL, series, style
from parlab.plots.still import hatched, subplots

# The parts of a step in the order of a bar.
PARTS = {
    "products": ("matrix products", style("compute")),
    "elementwise": ("other operations", series(2, "")),
    "tensor": ("tensor parallelism", style("communication")),
    "bubble": ("bubble", style("idle")),
    "pipeline": ("messages between stages", series(3, "")),
    "data": ("gradients and parameters", series(4, "")),
}

# The positions of the chart's columns, and half of the height of a box.
_QUESTION, _SECOND, _WIDTH, _LEAF, _END, _HALF = 2.9, 3.5, 2.3, 6.5, 11.9, 0.38


@dataclass(frozen=True)
class Question:
    """A question of the decision chart.

    Attributes:
        leaves: for each piece of advice, the answer that leads to it, the advice, and its numbers.
        second: a question that follows a "yes" to the first one.
    """

    text: str
    leaves: Sequence[tuple[str, str, str]]
    second: str = ""


def groups(title: str, panels: Mapping[str, Sequence[Sequence[int]]], per_node: int) -> Figure:
    """Draw the ranks of each node, once for each kind of group. Ranks of a group look the same."""
    count = sum(len(group) for group in next(iter(panels.values())))
    figure, every = subplots(title, 1, len(panels), figsize=(3.3 * len(panels), 2.6))
    for axes, (name, lists) in zip(every, panels.items(), strict=True):
        for number, group in enumerate(lists):
            for rank in group:
                node, place = divmod(rank, per_node)
                box(axes, place, -1.35 * node, series(number, ""), str(rank))
        for node in range(count // per_node):
            axes.text(-0.12, 0.5 - 1.35 * node, f"node {node}", ha="right", va="center", **TEXT)
        axes.set_title(name, color=NEUTRAL, fontsize=12, loc="center")
        bare(axes, (-1.35, per_node + 0.05), (-1.35 * (count // per_node - 1) - 0.1, 1.1))
    plt.close(figure)
    return figure


def step_shares(title: str, steps: Mapping[str, Parts]) -> Figure:
    """Draw the parts of each step as shares of its time, one bar for each name."""
    figure, axes = subplots(title, figsize=(8.4, 0.36 * len(steps) + 1.9))
    rows = range(len(steps) - 1, -1, -1)
    left = [0.0] * len(steps)
    for part, (label, look) in PARTS.items():
        widths = [100 * getattr(step, part) / step.total for step in steps.values()]
        axes.barh(rows, widths, left=left, height=0.72, **hatched(look, label))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(rows, steps)
    axes.set(xlabel="share of the step (%)", xlim=(0, 100))
    figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=NEUTRAL)
    plt.close(figure)
    return figure


def decision_chart(title: str, questions: Sequence[Question], last: Question) -> Figure:
    """Draw questions from top to bottom. Each "no" leads to the next one, and `last` ends the list.

    The answers to a question are on its right. A `second` question, if any, is between them.
    """
    rows = [len(one.leaves) for one in (*questions, last)]
    figure, axes = subplots(title, figsize=(9.4, 0.95 * sum(rows) + 1.0))
    top = 0.0
    for place, (one, count) in enumerate(zip((*questions, last), rows, strict=True)):
        middle = top - (count - 1) / 2
        _node(axes, 0.0, middle, _QUESTION, one.text)
        start = _QUESTION
        if one.second:
            _arrow(axes, (start, middle), (_SECOND, middle), "yes")
            _node(axes, _SECOND, middle, _WIDTH, one.second)
            start = _SECOND + _WIDTH
        for row, (answer, advice, numbers) in enumerate(one.leaves):
            y = top - row
            _node(axes, _LEAF, y, _END - _LEAF, "", style("idle").colour)
            axes.text(_LEAF + 0.15, y + 0.14, advice, va="center", weight="bold", **TEXT)
            axes.text(_LEAF + 0.15, y - 0.16, numbers, va="center", color=NEUTRAL, fontsize=10)
            _arrow(axes, (start, middle), (_LEAF, y), answer)
        if place < len(questions):
            below = top - count - (rows[place + 1] - 1) / 2
            _arrow(axes, (_QUESTION / 2, middle - _HALF), (_QUESTION / 2, below + _HALF), "no")
        top -= count
    bare(axes, (-0.1, _END + 0.1), (top + 0.5, 0.5))
    plt.close(figure)
    return figure


def _node(
    axes: Axes, x: float, y: float, width: float, text: str, color: str = style("compute").colour
) -> None:
    """Draw a box whose left side has its middle at (x, y)."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y - _HALF), width, 2 * _HALF, boxstyle="round,pad=0,rounding_size=0.1",
            facecolor="none", edgecolor=color, linewidth=1.6,
        )
    )  # fmt: skip
    axes.text(x + width / 2, y, text, ha="center", va="center", **TEXT)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "->", "color": NEUTRAL, "linewidth": 1.5}
    )
    (x0, y0), (x1, y1) = start, end
    if x0 == x1:
        axes.text(x0 + 0.15, (y0 + y1) / 2, text, ha="left", va="center", **TEXT)
    elif y0 == y1:
        axes.text((x0 + x1) / 2, y0 + 0.1, text, ha="center", va="bottom", **TEXT)
    else:  # left of the arrow, which goes up or down
        x, y, up = x0 + 0.7 * (x1 - x0) - 0.06, y0 + 0.7 * (y1 - y0), y1 > y0
        vertical = {"va": "bottom"} if up else {"va": "top"}
        axes.text(x, y + (0.04 if up else -0.04), text, ha="right", **vertical, **TEXT)
