"""Still pictures of data parallelism: a step, who gets which samples, and steps without waiting."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from parlab.plots.look import NEUTRAL, SERIES, ink, style
from parlab.plots.still import hatched, subplots

COLUMN, WIDTH, HEIGHT = 2.6, 2.2, 0.62


def _box(axes: Any, x: float, y: float, text: str, colour: str, width: float = WIDTH) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - HEIGHT / 2), width, HEIGHT,
            boxstyle="round,pad=0.02,rounding_size=0.12", facecolor=colour, edgecolor="none",
        )
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", color=ink(colour), fontsize=10)


def _arrow(axes: Any, x: float, top: float, bottom: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (x, top - HEIGHT / 2 - 0.05), (x, bottom + HEIGHT / 2 + 0.05),
            arrowstyle="-|>", mutation_scale=12, color=NEUTRAL, shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def one_step(title: str, ranks: int = 4) -> Figure:
    """Draw a training step from top to bottom, with one column per rank."""
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
    _box(axes, middle, rows[3], "all-reduce: every rank gets the weighted mean",
         style("communication").colour, width)  # fmt: skip
    axes.set(xlim=(-1.3, COLUMN * (ranks - 1) + 1.3), ylim=(-0.45, 5.4))
    axes.axis("off")
    plt.close(figure)  # the cell shows its result, and would show an open figure again
    return figure


def dealt(title: str, shuffle: Sequence[int], batch_size: int, ranks: int) -> Figure:
    """Draw a shuffle cut into global batches, each dealt out to the ranks like cards."""
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
    plt.close(figure)  # the cell shows its result, and would show an open figure again
    return figure


class Computation(NamedTuple):
    """A gradient computed from `start` to `end` (s), applied `delay` updates late."""

    worker: int
    start: float
    end: float
    delay: int


def asynchronous(seconds: Sequence[float], until: float) -> list[Computation]:
    """Return the gradients that are complete at the time `until`, if no worker waits.

    Worker i computes a gradient in `seconds[i]`. A server applies each at once. The delay of a
    gradient is the number of updates since the worker read the weights.
    """
    ends = sorted(
        ((k + 1) * each, worker)
        for worker, each in enumerate(seconds)
        for k in range(int(until / each + 1e-9))
    )
    read_at, computations = [0] * len(seconds), []  # by worker: updates when it read the weights
    for updates, (end, worker) in enumerate(ends):
        delay = updates - read_at[worker]
        computations.append(Computation(worker, end - seconds[worker], end, delay))
        read_at[worker] = updates + 1
    return computations


def waiting_or_late(title: str, seconds: Sequence[float], steps: int) -> Figure:
    """Draw workers that wait for the slowest one, above workers that do not wait."""
    figure, (upper, lower) = subplots(title, 2, 1, figsize=(8.5, 4.4), sharex=True)
    slowest, until = max(seconds), max(seconds) * steps
    for step in range(steps):
        for worker, each in enumerate(seconds):
            _bar(upper, worker, step * slowest, each, "compute")
            if each < slowest:
                _bar(upper, worker, step * slowest + each, slowest - each, "idle")
        upper.axvline((step + 1) * slowest, label="all-reduce", linewidth=3,
                      color=style("communication").colour)  # fmt: skip
    for computation in asynchronous(seconds, until):
        length = computation.end - computation.start
        _bar(lower, computation.worker, computation.start, length, "compute")
        lower.text(
            computation.start + length / 2, computation.worker, str(computation.delay),
            ha="center", va="center", color=ink(style("compute").colour), fontsize=11,
        )  # fmt: skip
    for axes, name in ((upper, "synchronous"), (lower, "asynchronous: delay of each gradient")):
        axes.set_title(name)
        axes.set_yticks(range(len(seconds)), [f"rank {i}" for i in range(len(seconds))])
        axes.set(xlim=(0, until * 1.005), ylim=(len(seconds) - 0.45, -0.55))
    lower.set_xlabel("time (s)")
    handles, labels = upper.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside lower right", ncols=len(shown),
                  frameon=False, labelcolor=NEUTRAL)  # fmt: skip
    plt.close(figure)  # the cell shows its result, and would show an open figure again
    return figure


def _bar(axes: Any, row: int, start: float, length: float, role: str) -> None:
    drawn_as = hatched(role) | {"linewidth": 0.8}
    axes.broken_barh([(start, length)], (row - 0.38, 0.76), **drawn_as)
