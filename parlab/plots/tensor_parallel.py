"""Pictures of tensor parallelism: matrices cut over ranks, and what a layer keeps and takes."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parlab.costs.tensor_parallel import Layer, activation_bytes
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.look import NEUTRAL, SERIES, bar
from parlab.plots.still import subplots
from parlab.plots.two_sliders import add_two_sliders

# How a layer's activations may be kept: name, sequence parallel, recomputation.
SCHEMES: tuple[tuple[str, bool, str], ...] = (
    ("tensor parallel", False, "none"),
    ("+ sequence", True, "none"),
    ("+ selective", False, "selective"),
    ("+ both", True, "selective"),
    ("full recompute", False, "full"),
)


def cut_products(title: str, ranks: int = 2) -> Figure:
    """X·A by columns of A, and by rows: who holds what, and what the result is."""
    figure, axes = subplots(title, 1, 2, figsize=(9.5, 3.2))
    left, right = axes
    _matrix(left, 0.0, "X", ranks, None)
    _matrix(left, 2.0, "A", ranks, "columns")
    _matrix(left, 4.0, "XA", ranks, "columns")
    _matrix(right, 0.0, "X", ranks, "columns")
    _matrix(right, 2.0, "A", ranks, "rows")
    _matrix(right, 4.0, "part of XA", ranks, "parts")
    for part, name, sent in (
        (left, "by columns", "each rank has its columns: nothing to send"),
        (right, "by rows", "each rank has a part of every sum: all-reduce"),
    ):
        part.set_title(name, color=NEUTRAL)
        part.text(2.7, -0.45, sent, ha="center", color=NEUTRAL, fontsize=10)
        for x, sign in ((1.7, "·"), (3.7, "=")):
            part.text(x, 0.7, sign, ha="center", va="center", color=NEUTRAL, fontsize=16)
        part.set(xlim=(-0.2, 5.7), ylim=(-0.8, 2.0), aspect="equal")
        part.axis("off")
    plt.close(figure)  # the cell shows what it returns, and would show it twice
    return figure


def _matrix(axes: Axes, x: float, name: str, ranks: int, cut: str | None) -> None:
    """A square; its parts have the ranks' colours; uncut, it is every rank's."""
    side = 1.4
    axes.text(x + side / 2, side + 0.12, name, ha="center", color=NEUTRAL, fontsize=11)
    for rank in range(ranks):
        look = SERIES[rank % len(SERIES)]
        step = side / ranks
        place, width, height = {
            None: ((x, 0.0), 0.0, 0.0),
            "columns": ((x + rank * step, 0.0), step, side),
            "rows": ((x, side - (rank + 1) * step), side, step),
            "parts": ((x + 0.12 * rank, -0.1 * rank), side, side),
        }[cut]
        if cut:
            axes.add_patch(
                Rectangle(
                    place, width, height, facecolor=look.colour, hatch=look.hatch,
                    edgecolor="white", alpha=0.85 if cut != "parts" else 0.6,
                )
            )  # fmt: skip
            middle = (place[0] + width / 2, place[1] + height / 2)
            if cut != "parts":
                axes.text(
                    *middle, f"rank {rank}", ha="center", va="center", color="white", fontsize=9
                )
    if cut is None:
        axes.add_patch(Rectangle((x, 0.0), side, side, fill=False, edgecolor=NEUTRAL, linewidth=2))
        axes.text(x + side / 2, side / 2, "all\nranks", ha="center", va="center", color=NEUTRAL)
    if cut == "parts":
        axes.text(x + 0.8, 0.6, "all ranks,\nto be added", ha="center", va="center", color="white")


def activation_explorer(
    title: str,
    models: Mapping[str, Layer],
    ranks: Sequence[int],
    active: tuple[int, int] = (0, 0),
) -> go.Figure:
    """Bytes of a layer's activations on a rank by scheme: choose the model and the ranks."""
    figure = interactive_figure(
        title, y="activations of a layer on each rank (GB)", height=600,
        yaxis_type="log", yaxis_range=[-2.6, 1.4],
        barmode="overlay",  # or those that are not chosen would lie below, unseen
    )  # fmt: skip
    names = [name for name, _, _ in SCHEMES]

    def bars(layer: Layer, n: int) -> go.Bar:
        heights = [
            activation_bytes(layer, n, sequence_parallel=shared, recompute=again) / 1e9
            for _, shared, again in SCHEMES
        ]
        return go.Bar(x=names, y=heights, hovertemplate="%{y:.3g} GB", **bar("activations"))

    traces = {(model, str(n)): [bars(layer, n)] for model, layer in models.items() for n in ranks}
    add_two_sliders(figure, ("model:", "ranks of a layer:"), traces, active)
    for slider in figure.layout.sliders:
        slider.pad.t += 40  # on a phone the names are turned, and need room above
    return figure
