"""Figures of chapter 08: memory over time, segments, plans, small optimizer states, a ladder."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import plotly.graph_objects as go
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from parlab.costs.memory import forward_flop, frontier, recompute_slowdown
from parlab.costs.tensor_parallel import Layer
from parlab.plots.interactive import add_slider
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.look import NEUTRAL, bar, line, series, style
from parlab.plots.still import subplots

KINDS = ("parameters", "gradients", "optimizer_states", "activations", "logits")
LOGITS = series(3, "logits")


def timeline(title: str, runs: Mapping[str, tuple[Sequence[float], int]]) -> Figure:
    """Draw the bytes that a step's tensors take after each operation, one panel for each run.

    Args:
        runs: by name, the bytes after each operation, and the number of operations of the forward
            pass.
    """
    figure, panels = subplots(
        title, len(runs), figsize=(7.2, 1.7 * len(runs) + 1.2), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    look = style("activations")
    for axes, (name, (live, forward)) in zip(panels[:, 0], runs.items(), strict=True):
        megabytes = np.asarray(live) / 1e6
        axes.fill_between(range(len(live)), megabytes, color=look.colour, alpha=0.35, lw=0)
        axes.plot(megabytes, color=look.colour, lw=1.5)
        axes.axvline(forward, color=NEUTRAL, ls="--", lw=1)
        axes.set_title(name, color=NEUTRAL, fontsize=13, loc="center")
        axes.set_ylabel("MB")
        axes.text(
            0.98, 0.92, f"peak {megabytes.max():.1f} MB", transform=axes.transAxes, ha="right",
            va="top", color=NEUTRAL, fontsize=13,
        )  # fmt: skip
    highest = max(max(live) for live, _ in runs.values()) / 1e6
    panels[0, 0].set(ylim=(0, 1.12 * highest), xlim=(0, None))
    panels[-1, 0].set_xlabel("operations of the step (dashed line: end of the forward pass)")
    plt.close(figure)
    return figure


def segments(
    title: str, numbers: Sequence[int], formula: Sequence[float], measured: Mapping[int, float]
) -> go.Figure:
    """Draw the peak over the number of checkpointed segments: the formula and measured points."""
    figure = interactive_figure(
        title, x="checkpointed segments", y="peak of activations (MB)", xaxis_type="log",
        yaxis_rangemode="tozero",
    )  # fmt: skip
    figure.update_xaxes(tickvals=list(measured), dtick=None)
    figure.add_scatter(
        x=list(numbers),
        y=[size / 1e6 for size in formula],
        mode="lines",
        **line("model", "formula"),
    )
    figure.add_scatter(
        x=list(measured), y=[size / 1e6 for size in measured.values()], mode="markers",
        **line("activations", "measured"),
    )  # fmt: skip
    return figure


def plan_explorer(
    title: str, hidden: int, heads: int, sequences: Sequence[int], active: int = 0
) -> go.Figure:
    """Draw what a layer keeps against the FLOP that it repeats, for the best plans.

    A slider chooses the length of the sequence. One line is for attention that keeps its scores,
    and one for fused attention, which does not. A mark shows the layer's whole forward pass.
    """
    figure = interactive_figure(
        title, x="additional FLOP of a step", y="bytes kept for each number of sbh", height=440,
        yaxis_type="log", yaxis_range=[0, 3.4], xaxis={"tickformat": ".0%", "range": [-0.01, 0.36]},
    )  # fmt: skip
    looks = (series(0, "attention keeps its scores"), series(1, "fused attention"))

    def curves(sequence: int) -> list[go.Scatter]:
        layer = Layer(1, sequence, hidden, heads)
        drawn = []
        for fused, look in zip((False, True), looks, strict=True):
            plans = frontier(layer, fused=fused)
            repeated = [plan.flop / (3 * forward_flop(layer)) for plan in plans]
            kept = [plan.bytes / layer.numbers for plan in plans]
            drawn.append(go.Scatter(x=repeated, y=kept, mode="lines+markers", **line(look)))
        full = line("model", "the whole forward pass")
        drawn.append(go.Scatter(x=[recompute_slowdown() - 1], y=[2], mode="markers", **full))
        for trace in drawn:
            trace.hovertemplate = "+%{x:.1%}: %{y:.3g} bytes"
        return drawn

    add_slider(figure, "tokens in a sequence:", {f"{s:,}": curves(s) for s in sequences}, active)
    return figure


def second_moments(title: str, exact: np.ndarray, factored: np.ndarray) -> Figure:
    """Draw a matrix of second moments and its reconstruction from row and column means."""
    figure, panels = subplots(title, 1, 2, figsize=(7.6, 3.6), sharey=True)
    low, high = np.quantile(exact, [0.02, 0.999])
    panels_of = (("Adam's second moment", exact), ("rows × columns", factored))
    for axes, (name, values) in zip(panels, panels_of, strict=True):
        drawn = axes.imshow(values, norm=LogNorm(low, high), cmap="viridis", aspect="auto")
        axes.set_title(name, color=NEUTRAL, fontsize=13, loc="center")
        axes.set_xlabel("column")
    panels[0].set_ylabel("row")
    scale = figure.colorbar(drawn, ax=panels, pad=0.02)
    scale.ax.yaxis.set_tick_params(color=NEUTRAL, labelcolor=NEUTRAL)
    scale.outline.set_edgecolor(NEUTRAL)
    plt.close(figure)
    return figure


def code_errors(title: str, maps: Mapping[str, Sequence[float]]) -> go.Figure:
    """Draw the relative error of rounding a number to the nearest code, for each map of codes.

    Numbers are relative to the largest number of their block, and range from 10⁻⁷ to 1.
    """
    figure = interactive_figure(
        title, x="number / largest of its block", y="mean relative error", height=420,
        xaxis={"type": "log", "dtick": 2}, yaxis_type="log",
    )  # fmt: skip
    numbers = np.logspace(-7, 0, 5600)
    for place, (name, codes) in enumerate(maps.items()):
        errors = nearest_errors(numbers, np.asarray(codes)).reshape(-1, 80).mean(1)
        look = line(series(place, name))
        figure.add_scatter(
            x=numbers.reshape(-1, 80).mean(1), y=errors, mode="lines",
            name=look["name"], line=look["line"], hovertemplate="%{y:.2g}",
        )  # fmt: skip
    return figure


def nearest_errors(numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the relative error of each number after rounding to the nearest code."""
    codes = np.sort(codes)
    right = np.clip(np.searchsorted(codes, numbers), 1, len(codes) - 1)
    left = codes[right - 1]
    nearest = np.where(numbers - left <= codes[right] - numbers, left, codes[right])
    return np.abs(nearest - numbers) / np.abs(numbers)


def ladder(title: str, steps: Mapping[str, Mapping[str, float]], device: float) -> go.Figure:
    """Draw bytes on a device by kind, one bar for each step of the ladder, from the top down.

    Args:
        steps: by name, the bytes of each of `KINDS`.
        device: bytes of the device, drawn as a line.
    """
    figure = interactive_figure(
        title, x="memory (GB)", height=130 + 46 * len(steps), barmode="stack",
        yaxis={"autorange": "reversed"}, margin_t=96, legend_traceorder="normal",
    )  # fmt: skip
    # On a phone, names in one line would leave no room for the bars.
    names = ["<br>".join(textwrap.wrap(name, 13, break_on_hyphens=False)) for name in steps]
    for kind in KINDS:
        look = LOGITS if kind == "logits" else kind
        figure.add_bar(
            x=[bytes_of[kind] / 1e9 for bytes_of in steps.values()], y=names, orientation="h",
            hovertemplate="%{x:.3g} GB", **bar(look),
        )  # fmt: skip
    figure.add_vline(x=device / 1e9, line={"color": NEUTRAL, "dash": "dot", "width": 2})
    figure.add_annotation(
        text=f"{device / 1e9:.0f} GB", x=device / 1e9, y=0, yref="paper", xanchor="left",
        yanchor="bottom", xshift=4, showarrow=False,
    )  # fmt: skip
    return figure
