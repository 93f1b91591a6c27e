"""Figures of chapter 10 on meshes, the time of a step, and the choice of a layout."""

from collections.abc import Mapping, Sequence

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
    "elementwise": ("other operations", style("parameters")),
    "tensor": ("tensor parallelism", style("communication")),
    "bubble": ("bubble", style("idle")),
    "pipeline": ("messages between stages", style("gradients")),
    "data": ("gradients and parameters", style("optimizer_states")),
}


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


def decision_chart(
    title: str, questions: Sequence[str], leaves: Sequence[tuple[str, str]]
) -> Figure:
    """Draw questions as a chain, each with the answer that ends it on the right.

    Args:
        questions: each leads to its leaf for "yes", and to the next question for "no".
        leaves: the advice and its numbers; one more than questions, for the last "no".
    """
    figure, axes = subplots(title, figsize=(9.6, 1.5 * len(questions) + 1.6))
    height, step = 1.0, 1.5
    for row, question in enumerate(questions):
        y = -step * row
        _node(axes, 0.0, y, 3.1, height, question, style("compute").colour)
        _arrow(axes, (3.1, y + height / 2), (4.0, y + height / 2), "yes")
        _leaf(axes, y, height, *leaves[row])
        last = row == len(questions) - 1
        _arrow(axes, (1.55, y), (1.55, y - step + height), "no")
        if last:
            _leaf(axes, y - step, height, *leaves[-1], x=0.0)
    bare(axes, (-0.1, 10.2), (-step * len(questions) - 0.1, height + 0.1))
    plt.close(figure)
    return figure


def _leaf(axes: Axes, y: float, height: float, advice: str, numbers: str, x: float = 4.0) -> None:
    _node(axes, x, y, 6.1, height, "", style("idle").colour)
    axes.text(x + 0.15, y + 0.72 * height, advice, va="center", weight="bold", **TEXT)
    axes.text(x + 0.15, y + 0.3 * height, numbers, va="center", color=NEUTRAL, fontsize=10)


def _node(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str
) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor="none", edgecolor=color, linewidth=1.6,
        )
    )  # fmt: skip
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", **TEXT)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "->", "color": NEUTRAL, "linewidth": 1.5}
    )
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    if start[1] == end[1]:
        axes.text(x, y + 0.1, text, ha="center", va="bottom", **TEXT)
    else:
        axes.text(x + 0.12, y, text, ha="left", va="center", **TEXT)
