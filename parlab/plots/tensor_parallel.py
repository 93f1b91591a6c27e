"""Figures of tensor parallelism: split matrices, the layout of a layer, overlap, activations."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parlab.costs.tensor_parallel import Layer, activation_bytes
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.look import NEUTRAL, SERIES, bar, ink, paler, style
from parlab.plots.still import hatched, subplots
from parlab.plots.two_sliders import add_two_sliders

# Ways to store a layer's activations: name, sequence parallelism, recomputation.
SCHEMES: tuple[tuple[str, bool, str], ...] = (
    ("tensor parallel", False, "none"),
    ("+ sequence", True, "none"),
    ("+ selective", False, "selective"),
    ("+ both", True, "selective"),
    ("full recomputation", False, "full"),
)


def cut_products(title: str, ranks: int = 2) -> Figure:
    """Draw X·A with A split by columns and by rows: what each rank holds and computes."""
    figure, axes = subplots(title, 1, 2, figsize=(9.5, 3.2))
    left, right = axes
    _matrix(left, 0.0, "X", ranks, None)
    _matrix(left, 2.0, "A", ranks, "columns")
    _matrix(left, 4.0, "XA", ranks, "columns")
    _matrix(right, 0.0, "X", ranks, "columns")
    _matrix(right, 2.0, "A", ranks, "rows")
    _matrix(right, 4.0, "terms of XA", ranks, "parts")
    for part, name, sent in (
        (left, "A split by columns", "each rank computes some columns"),
        (right, "A split by rows", "each rank computes one term of a sum"),
    ):
        part.set_title(name, color=NEUTRAL)
        part.text(2.7, -0.45, sent, ha="center", color=NEUTRAL, fontsize=10)
        for x, sign in ((1.7, "·"), (3.7, "=")):
            part.text(x, 0.7, sign, ha="center", va="center", color=NEUTRAL, fontsize=16)
        part.set(xlim=(-0.2, 5.7), ylim=(-0.8, 2.0), aspect="equal")
        part.axis("off")
    plt.close(figure)  # the cell shows the returned figure: do not show it twice
    return figure


def _matrix(axes: Axes, x: float, name: str, ranks: int, cut: str | None) -> None:
    """Draw a square matrix. Its parts have the colors of their ranks. A whole matrix has none."""
    side = 1.4
    axes.text(x + side / 2, side + 0.12, name, ha="center", color=NEUTRAL, fontsize=11)
    for rank in range(ranks):
        drawn_as = SERIES[rank % len(SERIES)]
        step = side / ranks
        place, width, height = {
            None: ((x, 0.0), 0.0, 0.0),
            "columns": ((x + rank * step, 0.0), step, side),
            "rows": ((x, side - (rank + 1) * step), side, step),
            "parts": ((x + 0.12 * rank, -0.1 * rank), side, side),
        }[cut]
        if cut:
            colour = paler(drawn_as.colour, 0.15)
            axes.add_patch(
                Rectangle(
                    place, width, height, facecolor=colour, hatch=drawn_as.hatch, edgecolor="white"
                )
            )
            middle = (place[0] + width / 2, place[1] + height / 2)
            if cut != "parts":
                _text_on(axes, *middle, f"rank {rank}", colour, fontsize=9)
    if cut is None:
        axes.add_patch(Rectangle((x, 0.0), side, side, fill=False, edgecolor=NEUTRAL, linewidth=2))
        axes.text(x + side / 2, side / 2, "all\nranks", ha="center", va="center", color=NEUTRAL)
    if cut == "parts":
        _text_on(axes, x + 0.8, 0.6, "one on\neach rank", colour, fontsize=13)


def _text_on(axes: Axes, x: float, y: float, text: str, colour: str, fontsize: float) -> None:
    """Write a text on a tile of some color, with no hatch behind the text."""
    plate = {"facecolor": colour, "linewidth": 0, "pad": 1.5}
    axes.text(
        x, y, text, ha="center", va="center", color=ink(colour), fontsize=fontsize, bbox=plate
    )


# The steps of a layer, and whether each one is inside a parallel part.
_STEPS: tuple[tuple[str, bool], ...] = (
    ("input,\nnorm", False),
    ("Q, K, V,\nattention", True),
    ("dropout,\nresidual,\nnorm", False),
    ("MLP,\n4h wide", True),
    ("dropout,\nresidual", False),
)
_MESSAGES = {
    False: ("f: backward, all-reduce", "g: forward, all-reduce"),
    True: ("gather: forward, all-gather", "scatter: forward, reduce-scatter"),
}


def layer_layout(title: str, *, sequence_parallel: bool = False, ranks: int = 2) -> Figure:
    """Draw what each rank holds of the activations along a layer, and where ranks communicate.

    A square is a whole activation: tokens from top to bottom, hidden size from left to right. With
    `sequence_parallel`, a second panel shows sequence parallelism next to tensor parallelism.
    """
    panels = (False, True) if sequence_parallel else (False,)
    figure, axes = subplots(
        title, 1, len(panels), figsize=(2.0 + 3.3 * len(panels), 6.4), squeeze=False,
        width_ratios=(1.5 * ranks + 2.3, 1.5 * ranks + 1.0)[: len(panels)],
    )  # fmt: skip
    for part, sharded in zip(axes[0], panels, strict=True):
        part.set_title(
            "sequence parallelism" if sharded else "tensor parallelism", color=NEUTRAL, fontsize=11
        )
        for row, (name, inside) in enumerate(_STEPS):
            y = -1.7 * row
            if part is axes[0, 0]:
                part.text(-0.2, y + 0.5, name, ha="right", va="center", color=NEUTRAL, fontsize=11)
            for rank in range(ranks):
                _held(part, 1.5 * rank, y, rank, ranks, inside, sharded)
            if row:
                middle = (1.5 * (ranks - 1) + 1.2) / 2
                message = _MESSAGES[sharded][0 if inside else 1]
                part.text(middle, y + 1.36, message, ha="center", va="center", color=NEUTRAL,
                          fontsize=10)  # fmt: skip
        for rank in range(ranks):
            part.text(
                1.5 * rank + 0.6, 1.15, f"rank {rank}", ha="center", color=NEUTRAL, fontsize=11
            )
        left = -1.9 if part is axes[0, 0] else -0.6
        part.set(xlim=(left, 1.5 * ranks + 0.4), ylim=(-1.7 * (len(_STEPS) - 1) - 0.1, 1.5))
        part.axis("off")
    plt.close(figure)
    return figure


def _held(
    axes: Axes, x: float, y: float, rank: int, ranks: int, inside: bool, sharded: bool
) -> None:
    """Draw the outline of a whole activation, filled where `rank` holds it."""
    width, height = 1.2, 1.0
    place, size = (x, y), (width, height)
    if inside:  # some heads, or some hidden columns, of all tokens
        place, size = (x + rank * width / ranks, y), (width / ranks, height)
    elif sharded:  # all columns of some tokens
        place, size = (x, y + height - (rank + 1) * height / ranks), (width, height / ranks)
    axes.add_patch(Rectangle(place, *size, facecolor=style("activations").colour, alpha=0.85))
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=NEUTRAL, linewidth=1.2))


Spans = Sequence[tuple[float, float]]  # start and duration, in seconds


def overlap(title: str, plans: Mapping[str, tuple[Spans, Spans]]) -> Figure:
    """Draw when a rank computes and when it communicates, one panel for each plan."""
    figure, axes = subplots(
        title, len(plans), 1, figsize=(7.2, 0.9 + 1.35 * len(plans)), sharex=True, squeeze=False
    )
    for part, (name, lanes) in zip(axes[:, 0], plans.items(), strict=True):
        part.set_title(name, color=NEUTRAL, fontsize=11)
        for row, (role, spans) in enumerate(zip(("compute", "communication"), lanes, strict=True)):
            micro = [(1e6 * start, 1e6 * duration) for start, duration in spans]
            drawn_as = hatched(role) | {"edgecolor": "white", "linewidth": 1.0}
            part.broken_barh(micro, (row - 0.38, 0.76), **drawn_as)
        part.set(ylim=(1.6, -0.6), xlim=(0, None))
        part.set_yticks((0, 1), ("compute", "all-reduce"))
    axes[-1, 0].set_xlabel("time (µs)")
    plt.close(figure)
    return figure


def activation_explorer(
    title: str,
    models: Mapping[str, Layer],
    ranks: Sequence[int],
    active: tuple[int, int] = (0, 0),
) -> go.Figure:
    """Draw one layer's activations by scheme, with sliders for the model and the ranks."""
    figure = interactive_figure(
        title, y="one layer's activations on each rank (GB)", height=600,
        yaxis_type="log", yaxis_range=[-2.6, 1.4],
        barmode="overlay",  # stacking would count the hidden bars too
    )  # fmt: skip
    names = [name for name, _, _ in SCHEMES]

    def bars(layer: Layer, n: int) -> go.Bar:
        heights = [
            activation_bytes(layer, n, sequence_parallel=shared, recompute=again) / 1e9
            for _, shared, again in SCHEMES
        ]
        return go.Bar(x=names, y=heights, hovertemplate="%{y:.3g} GB", **bar("activations"))

    traces = {(model, str(n)): [bars(layer, n)] for model, layer in models.items() for n in ranks}
    add_two_sliders(figure, ("model:", "tensor-parallel ranks:"), traces, active)
    for slider in figure.layout.sliders:
        slider.pad.t += 40  # room for the names, which a phone shows rotated
    return figure
