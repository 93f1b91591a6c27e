"""Pictures of what a pipeline's ranks hold: which stages, and how many micro-batches."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parlab.plots.look import NEUTRAL, ink, series
from parlab.plots.still import artist, subplots


def held(
    title: str,
    measured: Mapping[str, Mapping[int, float]],
    formula: Mapping[str, Mapping[int, float]],
) -> Figure:
    """Draw micro-batches held against micro-batches per step, for each schedule.

    `measured` and `formula` map the name of a schedule to {micro-batches per step: number held}.
    """
    figure, axes = subplots(title, figsize=(6.4, 4.2))
    counts = sorted({m for by_m in measured.values() for m in by_m})
    for i, (name, by_m) in enumerate(measured.items()):
        drawn_as = series(i, f"{name}, measured")
        axes.plot(list(by_m), list(by_m.values()), **artist(drawn_as) | {"linestyle": "none"})
        color = drawn_as.colour
        axes.plot(list(formula[name]), list(formula[name].values()), color=color, linestyle=":")
    axes.plot([], [], color=NEUTRAL, linestyle=":", label="formula")
    axes.set(xlabel="micro-batches per step", ylabel="micro-batches held", xticks=counts)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, labelcolor=NEUTRAL)
    plt.close(figure)  # the cell shows the returned figure
    return figure


def placements(title: str, ranks: int) -> Figure:
    """Draw which stages each rank holds: looped, V-shaped, and with two copies of the model."""
    figure, axes = subplots(title, 1, 3, figsize=(6.4, 3.4), sharey=True)
    rows = range(ranks)
    down, up = list(rows), list(reversed(rows))
    _placement(axes[0], "Looped", [(down, 0), (down, ranks)])
    _placement(axes[1], "V-shaped (ZB-V)", [(down, 0), (up, ranks)])
    _placement(axes[2], "Two copies (DualPipe)", [(down, 0), (up, 0)], joined=False)
    axes[0].set_yticks(list(rows), [f"rank {rank}" for rank in rows])
    for part in axes:
        part.set(xlim=(-0.75, 1.75), ylim=(ranks - 0.4, -0.6))
        part.set_xticks([])
        part.tick_params(length=0)
        for spine in part.spines.values():
            spine.set_visible(False)
    plt.close(figure)  # the cell shows the returned figure
    return figure


def _placement(
    axes: Axes, name: str, columns: Sequence[tuple[Sequence[int], int]], joined: bool = True
) -> None:
    """Draw a box per stage and the path of a micro-batch.

    Each column lists the ranks of successive stages and the number of the first of them. The path
    continues from one column to the next if they are `joined`.
    """
    axes.set_title(name, fontsize="medium", color=NEUTRAL)
    path: list[tuple[float, float]] = []
    tones = ("#33699f", "#aacaea")  # paler, as in the pictures of schedules
    for column, (order, first) in enumerate(columns):
        for number, rank in enumerate(order):
            axes.add_patch(
                Rectangle((column - 0.3, rank - 0.28), 0.6, 0.56, facecolor=tones[column])
            )
            axes.text(
                column, rank, f"{first + number}", ha="center", va="center",
                color=ink(tones[column]), fontsize=13,
            )  # fmt: skip
            path.append((column, rank))
    breaks = set() if joined else {len(columns[0][0])}
    for i in range(1, len(path)):
        if i not in breaks:
            _arrow(axes, path[i - 1], path[i])


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow from the edge of one box to the edge of the next."""
    (x0, y0), (x1, y1) = start, end
    if x0 == x1:
        sign = 1 if y1 > y0 else -1
        ends = ((x0, y0 + 0.28 * sign), (x1, y1 - 0.28 * sign))
    else:
        ends = ((x0 + 0.3, y0), (x1 - 0.3, y1))
    drawn_as = {"arrowstyle": "->", "color": NEUTRAL, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=ends[1], xytext=ends[0], arrowprops=drawn_as)
